package guard

import (
	"reflect"
	"strings"
	"testing"
)

// What is read of a manifest can be written again, and is then the same; and no
// name in it leads anywhere but below the dataset.
func FuzzParseManifest(f *testing.F) {
	r := Record{Issuer: IssuerID{1}, Scope: "s", Number: 48, Sequence: 2, WriteID: WriteID{7}, State: Live}
	for _, files := range [][]SetFile{nil, {
		{"a", setFolder(48, WriteID{7}), 0, noChecksum, ""},
		{"b/\u00fc <&>\u2028", setFolder(1, WriteID{8}), MaxObject, Checksum{"CRC32C", "/////w=="}, "text/plain"},
	}} {
		b, err := formatManifest(r, files)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	for _, name := range []string{"../a", "/a", "a/", "a//b", ".", "a/../../b", "\\u0000", "\\ud800"} {
		b, err := formatManifest(r, []SetFile{{"NAME", setFolder(48, WriteID{7}), 1, Checksum{"CRC32C", "AAAAAQ=="}, ""}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(strings.Replace(string(b), "NAME", name, 1)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		files, err := parseManifest("ds", b)
		if err != nil {
			return
		}
		for i, f := range files {
			if !strings.HasPrefix(f.Key("ds"), "ds/data/") || strings.Contains("/"+f.Name+"/", "/../") || CheckKey(f.Key("ds")) != nil {
				t.Errorf("%q", f.Key("ds"))
			}
			if i > 0 && f.Name <= files[i-1].Name {
				t.Errorf("%q follows %q", f.Name, files[i-1].Name)
			}
			if n, _, ok := DataKey(f.Key("ds")); !ok || n < 1 {
				t.Errorf("%q is no key of a file", f.Key("ds"))
			}
		}
		again, err := formatManifest(r, files)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseManifest("ds", again)
		if err != nil || !reflect.DeepEqual(got, files) {
			t.Errorf("%+v, %v, was %+v", got, err, files)
		}
	})
}

func TestParseManifestRefuses(t *testing.T) {
	r := Record{Issuer: IssuerID{1}, Scope: "s", Number: 48, Sequence: 2, WriteID: WriteID{7}, State: Live}
	b, err := formatManifest(r, []SetFile{
		{"a", setFolder(48, WriteID{7}), 1, Checksum{"CRC32C", "AAAAAQ=="}, ""}, {"b", setFolder(48, WriteID{7}), 1, Checksum{"CRC32C", "AAAAAQ=="}, ""},
	})
	if err != nil {
		t.Fatal(err)
	}
	good := string(b)
	if files, err := parseManifest("ds", b); err != nil || len(files) != 2 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, tt := range []struct{ old, with, says string }{
		{`"s3fence_manifest":1`, `"s3fence_manifest":2`, "a newer s3fence may read it"},
		{`"s3fence_manifest":1,`, ``, "format is 0"},
		{`"scope":"s"`, `"scope":""`, "scope"},
		{`"token":48`, `"token":0`, "zero"},
		{`"token":48`, `"token":4.5`, "4.5"},
		{`"token":48`, `"token":-4`, "digit"},
		{`"sequence":2`, `"sequence":10000000000`, "digits"},
		{`"issuer":"01`, `"issuer":"0X`, "issuer"},
		{`"write_id":"07`, `"write_id":"7`, "write id"},
		{`"files":[`, `"extra":1,"files":[`, "extra"},
		{`"name":"a"`, `"name":"b"`, "order"},
		{`"name":"a"`, `"name":"c"`, "order"},
		{`"name":"a"`, `"name":"../a"`, "can't be the name of a file"},
		{`"name":"b"`, `"name":"a/b"`, "the folder of"},
		{`"folder":"0`, `"folder":"../0`, "folder"},
		{`"size":1`, `"size":-1`, "bytes"},
		{`"crc32c":"AAAAAQ=="`, `"crc32c":"AAAAAQ"`, "crc32c"},
		{`"crc32c":"AAAAAQ=="`, `"crc32c":"AAAAAR=="`, "crc32c"},
		{`"crc32c":"AAAAAQ=="`, `"crc32c":"AAAA\nAQ=="`, "crc32c"},
		{"]}\n", "]}\n{}", "follows"},
		{"]}\n", "]", "unexpected"},
		{`"name":"a"`, "\"name\":\"\xff\"", "UTF-8"},
	} {
		bad := strings.Replace(good, tt.old, tt.with, 1)
		if bad == good {
			t.Fatalf("%q is not there", tt.old)
		}
		if _, err := parseManifest("ds", []byte(bad)); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want %q", tt.with, err, tt.says)
		}
	}
	if _, err := parseManifest(strings.Repeat("d", 1000), b); err == nil {
		t.Error("keys that are too long")
	}
}
