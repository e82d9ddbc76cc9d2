package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/localstack/faultproxy"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
	"github.com/s3fence/s3fence/s3store"
)

func TestNames(t *testing.T) {
	const no = "can't be the name of a file"
	for _, tt := range []struct {
		name   string
		prefix string
		folds  bool
		keys   []string // in their order
		want   []string // their names, those of folders with a slash, or what the error says
	}{
		{"plain", "dir/", false, []string{"dir/a", "dir/a.b", "dir/b/c", "dir/漢字 +%"}, []string{"a", "a.b", "b/c", "漢字 +%"}},
		{"bucket", "", false, []string{"a", "b/c"}, []string{"a", "b/c"}},
		{"a prefix that is no name", "../x//", false, []string{"../x//a", "../x///b"}, []string{"a", no}},
		{"the object itself", "x/dir/", false, []string{"x/dir", "x/dir/a"}, []string{"dir", "a"}},
		{"the object itself, up", "x/../", false, []string{"x/..", "x/../a"}, []string{no, "a"}},
		{"the object itself, here", "./", false, []string{".", "./a"}, []string{no, "a"}},
		{"in its way", "dir/", false, []string{"dir", "dir/a", "dir/dir", "dir/dir/a", "dir/dir2"},
			[]string{"dir", "a", `object "dir" is`, `object "dir" is`, "dir2"}},
		{"out", "", false, []string{"..", "../x", "/etc/x", "a/../../b", "a/.."}, []string{no, no, no, no, no}},
		{"not as they are", "", false, []string{".", "./", "./a", "/", "a/", "a/./b", "a//", "a//b", "a\x00b"},
			[]string{no, no, no, no, "a/", no, no, no, no}},
		{"folders", "dir/", false, []string{"dir/", "dir/a/", "dir/a/b", "dir/c/d/"}, []string{"./", "a/", "a/b", "c/d/"}},
		{"file and folder", "", false, []string{"a", "a!", "a!/", "a-b", "a-b/c", "a/", "a/b", "a/b/c", "aa", "b/c"},
			[]string{"a", "a!", `object "a!" is`, "a-b", `object "a-b" is`, `object "a" is`, `object "a" is`, `object "a" is`, "aa", "b/c"}},
		{"cases apart", "", false, []string{"A", "B/a", "a", "b/A"}, []string{"A", "B/a", "a", "b/A"}},
		{"cases as one", "", true, []string{"A", "B/a", "C/", "a", "b/A", "b/c", "c/", "Ü", "ü"},
			[]string{"A", "B/a", "C/", `object "A" is`, `object "B/a" is`, "b/c", "c/", "Ü", `object "Ü" is`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := names{prefix: tt.prefix}
			if tt.folds {
				n.folded = map[string]string{}
			}
			for i, key := range tt.keys {
				o := n.object(key)
				switch {
				case o.key != key:
					t.Errorf("%q became %q", key, o.key)
				case o.err != nil:
					if !strings.Contains(o.err.Error(), tt.want[i]) {
						t.Errorf("%q: %v, want %s", key, o.err, tt.want[i])
					}
				default:
					name := filepath.ToSlash(o.name)
					if o.folder {
						name += "/"
					}
					if name != tt.want[i] {
						t.Errorf("%q is %q, want %q", key, name, tt.want[i])
					}
				}
			}
		})
	}
}

func TestFoldsCase(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	got, err := foldsCase(root)
	if left, rerr := fs.ReadDir(root.FS(), "."); err != nil || rerr != nil || len(left) != 0 {
		t.Errorf("%v, %v, left %v", err, rerr, left)
	}
	for _, name := range []string{"x", "X"} {
		if err := root.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if files, err := fs.ReadDir(root.FS(), "."); err != nil || got != (len(files) == 1) {
		t.Errorf("%t with %v, %v", got, files, err)
	}
}

// An onlyObject is a store in which every key is an object of the same bytes.
type onlyObject struct {
	guard.Store
	body string
}

func (onlyObject) URL(key string) string { return "s3://b/" + key }

func (o onlyObject) Get(context.Context, string, guard.ReadOptions) (guard.Object, io.ReadCloser, error) {
	return guard.Object{ETag: `"1"`, Size: int64(len(o.body))}, io.NopCloser(strings.NewReader(o.body)), nil
}

// Whatever the keys are, nothing is written outside the folder, also where links
// in it lead out; and what is said to be fetched is there.
func FuzzFetch(f *testing.F) {
	for _, key := range []string{
		"../x", "/etc/x", "a/../../b", "a//b", "a/./b", "a/", "dir/", "up/x", "abs/x", "in/x", "in/../up/x", "up/outside/secret",
		"file/x", "f", "far", "x\x00", `..\x`, `C:\x`, "c:x", "NUL", "con.txt", "sub", ".s3fence/x", strings.Repeat("n", 256), strings.Repeat("d/", 400) + "x",
	} {
		f.Add("dir", key, "dir/"+key, "bytes")
		f.Add("", key, key+"/b", "")
	}
	f.Fuzz(func(t *testing.T, url, first, second, body string) {
		top := t.TempDir()
		dst, secret := filepath.Join(top, "dst"), filepath.Join(top, "outside", "secret")
		for _, dir := range []string{filepath.Dir(secret), filepath.Join(dst, "sub")} {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{secret, filepath.Join(dst, "file")} {
			if err := os.WriteFile(name, []byte("secret"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for name, to := range map[string]string{"up": "..", "abs": filepath.Dir(secret), "in": "sub", "far": secret, "f": filepath.Join("..", "outside", "secret")} {
			if err := os.Symlink(to, filepath.Join(dst, name)); err != nil {
				t.Skip(err) // Windows may not allow them
			}
		}
		before := hashes(t, top, "dst")

		a := &app{log: slog.New(slog.DiscardHandler)}
		fetch := fetcher{a: a, g: guard.New(onlyObject{body: body}, nil), dst: dst, names: names{prefix: url}}
		if url != "" && !strings.HasSuffix(url, "/") {
			fetch.names.prefix += "/"
		}
		if err := fetch.open(); err != nil {
			t.Fatal(err)
		}
		defer fetch.close()
		keys := []string{first, second}
		slices.Sort(keys)
		for _, key := range slices.Compact(keys) {
			if key == "" {
				continue
			}
			o := fetch.names.object(key)
			if _, err := fetch.fetch(t.Context(), o); err != nil {
				continue
			}
			name := filepath.Join(dst, o.name)
			switch fi, err := os.Lstat(name); {
			case err != nil || !filepath.IsLocal(o.name):
				t.Errorf("%q was fetched to %s, %v", key, name, err)
			case o.folder:
			case !fi.Mode().IsRegular():
				t.Errorf("%q is %v", key, fi.Mode())
			default:
				if got, err := os.ReadFile(name); err != nil || string(got) != body {
					t.Errorf("%q has %q, %v, want %q", key, got, err, body)
				}
			}
		}

		if after := hashes(t, top, "dst"); !maps.Equal(before, after) {
			t.Errorf("outside the folder: %v, was %v", after, before)
		}
		for name := range hashes(t, dst, "") {
			if strings.HasPrefix(filepath.Base(name), ".s3fence-") && !strings.Contains(first+second, ".s3fence-") {
				t.Errorf("%s is left", name)
			}
		}
	})
}

// hashes returns what is in a folder, without what is in one part of it: of
// files the hash.
func hashes(t *testing.T, root, without string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case without != "" && name == without:
			return fs.SkipDir
		case path == root && d.IsDir():
			return nil
		case !d.Type().IsRegular():
			found[name] = d.Type().String()
			return nil
		}
		b, err := os.ReadFile(path)
		found[name] = fmt.Sprintf("%x", sha256.Sum256(b))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// minioApp returns what runs s3fence in this process against a server, maybe
// through a proxy.
func minioApp(t *testing.T, url string, env map[string]string) func(args ...string) (exitCode int, stdout, stderr string) {
	t.Helper()
	for k, v := range env {
		t.Setenv(k, v)
	}
	for k, v := range map[string]string{
		"AWS_ENDPOINT_URL_S3": url, "AWS_CONFIG_FILE": "nofile", "AWS_SHARED_CREDENTIALS_FILE": "nofile",
	} {
		t.Setenv(k, v)
	}
	return func(args ...string) (int, string, string) {
		var stdout, stderr bytes.Buffer
		a := &app{stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr, getenv: func(k string) string {
			return map[string]string{"S3FENCE_NO_PROFILE": "1"}[k]
		}}
		exit := a.main(t.Context(), args)
		t.Logf("%v: %d\n%s", args, exit, &stderr)
		return exit, stdout.String(), stderr.String()
	}
}

const tokenOf48 = "f1:8c1d0f2ab64e97d3:nightly/report:00000000000000000048:422d5fde"

// A tree with a large file and many small ones comes back as it was.
func TestGetManyOnMinIO(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	makeBuckets(t, m, "get-many")
	run := minioApp(t, m.URL, serverEnv(m, m))
	src, dst := t.TempDir(), filepath.Join(t.TempDir(), "dst")
	noise := rand.NewChaCha8([32]byte{1})
	write := func(name string, size int) {
		b := make([]byte, size)
		if _, err := noise.Read(b); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(src, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("large", 45<<20+1)
	for i := range 300 {
		write(filepath.Join(fmt.Sprint(i%7), fmt.Sprint(i%11), fmt.Sprint(i)), i*37)
	}
	if exit, _, _ := run("put", "-r", "--token", tokenOf48, src, "s3://get-many/tree"); exit != 0 {
		t.Fatalf("put: exit code %d", exit)
	}
	for _, flags := range [][]string{nil, {"--part-size", "5MiB", "--concurrency", "3"}} { // the second time over what is there
		exit, stdout, _ := run(append(flags, "get", "-r", "--json", "s3://get-many/tree", dst)...)
		if exit != 0 || !strings.Contains(stdout, `"counts":{"fetched":301}`) {
			t.Errorf("get: exit code %d, %s", exit, stdout)
		}
		if got, want := hashes(t, dst, ""), hashes(t, src, ""); !maps.Equal(got, want) {
			t.Errorf("got %d files, want %d, or others", len(got), len(want))
		}
	}
	alone := filepath.Join(t.TempDir(), "alone")
	if exit, stdout, _ := run("get", "--json", "s3://get-many/tree/large", alone); exit != 0 || !strings.Contains(stdout, `"bytes":47185921`) {
		t.Errorf("get: exit code %d, %s", exit, stdout)
	}
	if got, want := hashes(t, alone, "")["."], hashes(t, src, "")["large"]; got != want {
		t.Errorf("the large one has the hash %s, want %s", got, want)
	}
}

// An object that is replaced by a shorter one while it is downloaded: the file
// is one of the two, whole.
func TestGetReplacedMeanwhile(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	const bucket = "get-replaced"
	makeBuckets(t, m, bucket)
	g := guard.New(s3store.New(serverstest.S3Client(m), bucket, nil), nil)
	for _, many := range []bool{false, true} {
		t.Run(fmt.Sprint(many), func(t *testing.T) {
			key := fmt.Sprintf("%t/k", many)
			put := func(n int64, size int) []byte {
				b := bytes.Repeat([]byte{byte('0' + n)}, size)
				if _, err := g.Put(t.Context(), nthToken(t, n), key, guard.Bytes(b), &guard.PutOptions{AcceptRepeatableETag: true}); err != nil {
					t.Fatal(err)
				}
				return b
			}
			put(1, 10<<20)
			p, err := faultproxy.New(m.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			held := p.Hold(faultproxy.Rule{Method: http.MethodGet, Key: key, Nth: 3, Fault: faultproxy.Fault{Kind: faultproxy.Hold}})
			run := minioApp(t, p.URL(), serverEnv(m, m))
			dst := t.TempDir()
			args := []string{"get", "--part-size", "1MiB", "--json", "s3://" + bucket + "/" + key, dst}
			if many {
				args = append(args, "-r")
				args[len(args)-3] = "s3://" + bucket + "/true/"
			}
			var want []byte
			done := make(chan struct{})
			go func() {
				defer close(done)
				<-held.Reached()
				want = put(2, 5<<20)
				held.Release()
			}()
			exit, stdout, _ := run(args...)
			<-done
			got, err := os.ReadFile(filepath.Join(dst, "k"))
			if exit != 0 || err != nil || !bytes.Equal(got, want) || !strings.Contains(stdout, `"token":2,`) {
				t.Errorf("exit code %d, %d bytes, %v, %s", exit, len(got), err, stdout)
			}
			if left := hashes(t, dst, ""); len(left) != 1 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// Ctrl-C while parts are on their way: what was there stays, and nothing else is
// left.
func TestGetInterrupted(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	const bucket = "get-interrupted"
	makeBuckets(t, m, bucket)
	g := guard.New(s3store.New(serverstest.S3Client(m), bucket, nil), nil)
	tok, err := guard.ParseToken(tokenOf48)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"dir/0", "dir/1", "dir/2", "dir/3"} {
		if _, err := g.Put(t.Context(), tok, key, guard.Bytes(make([]byte, 10<<20)), nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name string
		args []string
		says string
		want []string // what may be there, of which the first was there before
	}{
		{"one", []string{"s3://" + bucket + "/dir/1"}, "s3://" + bucket + "/dir/1: ", []string{"1"}},
		{"many", []string{"-r", "--concurrency", "1", "s3://" + bucket + "/dir"}, "interrupted, not all of s3://" + bucket + "/dir was looked at", []string{"1", "0"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dst := t.TempDir()
			if err := os.WriteFile(filepath.Join(dst, "1"), []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			exit, stdout, stderr := interrupted(t, m,
				faultproxy.Rule{Method: http.MethodGet, Key: "dir/1", Nth: 3, Fault: faultproxy.Fault{Kind: faultproxy.Hold}},
				"", append(append([]string{"get", "--part-size", "1MiB"}, tt.args...), dst)...)
			if exit != 130 || !strings.Contains(stderr, tt.says) || !strings.Contains(stdout, `"reason":"interrupted"`) {
				t.Errorf("exit code %d, said %q, %s", exit, stderr, stdout)
			}
			if old, err := os.ReadFile(filepath.Join(dst, "1")); err != nil || string(old) != "old" {
				t.Errorf("it has %d bytes now, %v", len(old), err)
			}
			left := hashes(t, dst, "")
			for _, name := range tt.want {
				delete(left, name)
			}
			if len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// A download that is cut short goes on, also one that is written as it comes.
func TestCatCutShort(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	const bucket = "cat-cut-short"
	makeBuckets(t, m, bucket)
	body := make([]byte, 3<<20)
	_, _ = rand.NewChaCha8([32]byte{3}).Read(body)
	g := guard.New(s3store.New(serverstest.S3Client(m), bucket, nil), nil)
	if _, err := g.Put(t.Context(), nthToken(t, 1), "k", guard.Bytes(body), nil); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		then faultproxy.Fault // of the third request
		exit int
		says string
	}{
		{"twice", faultproxy.Fault{}, 0, ""},
		{"refused", faultproxy.Fault{Kind: faultproxy.Status, Status: http.StatusForbidden}, 1, ": 2359296 bytes written, which are not the object: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := faultproxy.New(m.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			p.Add(faultproxy.Rule{Method: http.MethodGet, Key: "k", Times: 2, Fault: faultproxy.Fault{Kind: faultproxy.TruncateAnswer}})
			if tt.then.Kind != "" {
				p.Add(faultproxy.Rule{Method: http.MethodGet, Key: "k", Fault: tt.then}) // of those that are left
			}
			exit, stdout, stderr := minioApp(t, p.URL(), serverEnv(m, m))("cat", "s3://"+bucket+"/k")
			if exit != tt.exit || !strings.Contains(stderr, tt.says) || !strings.HasPrefix(string(body), stdout) {
				t.Errorf("exit code %d, %d bytes, said %q", exit, len(stdout), stderr)
			}
			if exit == 0 && len(stdout) != len(body) {
				t.Errorf("%d of %d bytes", len(stdout), len(body))
			}
		})
	}
}
