package realservers

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"os/exec"
	"testing"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/storetest"
	"github.com/s3fence/s3fence/issuer/issuertest"
	"github.com/s3fence/s3fence/localstack/servers"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
)

var kms = &guard.PutOptions{SSE: "aws:kms"}

// take takes n tokens of a scope from a real issuer.
func take(t *testing.T, iss issuertest.Issuer, scope string, n int) []guard.Token {
	t.Helper()
	if _, _, err := iss.CreateScope(t.Context(), scope); err != nil {
		t.Fatal(err)
	}
	toks := make([]guard.Token, n)
	for i := range toks {
		var err error
		if toks[i], err = iss.Issue(t.Context(), scope); err != nil {
			t.Fatal(err)
		}
	}
	return toks
}

// The paused-writer story with tokens from dynalite and objects on MinIO.
func TestPausedWriter(t *testing.T) {
	m, d := serverstest.SharedMinIO(t), serverstest.SharedDynalite(t)
	iss := openIssuer(t, d, newTable(t, d))
	for sdk, open := range sdks {
		t.Run(sdk, func(t *testing.T) {
			store := open(t, m, newBucket(t, m))
			toks := take(t, iss, "story/"+sdk, 2)
			paused := storetest.Pause(store)
			end := make(chan error, 1)
			go func() {
				_, err := guard.New(paused, nil).Put(t.Context(), toks[0], "report.csv", guard.Bytes([]byte("old")), kms)
				end <- err
			}()
			<-paused.Reached()
			g := guard.New(store, nil)
			if res, err := g.Put(t.Context(), toks[1], "report.csv", guard.Bytes([]byte("new")), kms); err != nil || res.Outcome != guard.Created {
				t.Fatalf("%+v, %v", res, err)
			}
			paused.Release()
			var r *guard.Refusal
			if err := <-end; !errors.As(err, &r) || r.Reason != guard.ErrStale || r.Held.Number != 2 || r.MayHaveApplied {
				t.Errorf("the late writer was told %v", err)
			}
			if got := read(t, g, "report.csv"); string(got) != "new" {
				t.Errorf("the object holds %q", got)
			}
		})
	}
}

func read(t *testing.T, g *guard.Guard, key string) []byte {
	t.Helper()
	_, r, err := g.Get(t.Context(), key, nil)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	_, err = b.ReadFrom(r)
	if err = errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Without KMS: creating works, replacing a small object is refused with its
// cures, and asking for KMS says what the server lacks.
func TestMinIOWithoutKMS(t *testing.T) {
	m := serverstest.SharedMinIONoKMS(t)
	for sdk, open := range sdks {
		t.Run(sdk, func(t *testing.T) {
			store := open(t, m, newBucket(t, m))
			toks := take(t, local(t), "nokms", 2)
			if res, err := guard.New(store, nil).Put(t.Context(), toks[0], "k", guard.Bytes([]byte("one")), nil); err != nil || res.Outcome != guard.Created {
				t.Fatalf("%+v, %v", res, err)
			}
			_, err := guard.New(store, nil).Put(t.Context(), toks[1], "k", guard.Bytes([]byte("two")), nil)
			var r *guard.Refusal
			if !errors.As(err, &r) || r.Reason != guard.ErrRepeatableETag || len(r.Cures) < 3 {
				t.Errorf("replace: %v", err)
			}
			_, err = guard.New(store, nil).Put(t.Context(), toks[1], "k", guard.Bytes([]byte("two")), kms)
			if err == nil || errors.Is(err, guard.ErrOutcomeUnknown) {
				t.Errorf("replace under KMS: %v", err)
			}
			t.Logf("KMS asked for where there is none: %v", err)
			if got := read(t, guard.New(store, nil), "k"); string(got) != "one" {
				t.Errorf("the object holds %q", got)
			}
		})
	}
}

// What the guard wrote is an ordinary object to another program: boto3 reads
// its bytes exactly, and its metadata is a record that parses.
func TestBoto3ReadsIt(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	bucket := newBucket(t, m)
	body := make([]byte, 1<<20+7)
	if _, err := rand.Read(body); err != nil {
		t.Fatal(err)
	}
	toks := take(t, local(t), "boto3", 1)
	g := guard.New(sdks["aws"](t, m, bucket), nil)
	res, err := g.Put(t.Context(), toks[0], "päth/to +%2F.bin", guard.Bytes(body), &guard.PutOptions{
		SSE:     "aws:kms",
		Headers: guard.Headers{ContentType: "application/x-test", Metadata: map[string]string{"who": "me"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	const program = `
import boto3, hashlib, json, sys
endpoint, access, secret, region, bucket, key = sys.argv[1:]
s3 = boto3.client("s3", endpoint_url=endpoint, aws_access_key_id=access, aws_secret_access_key=secret, region_name=region)
o = s3.get_object(Bucket=bucket, Key=key)
print(json.dumps({"sha256": hashlib.sha256(o["Body"].read()).hexdigest(), "metadata": o["Metadata"], "type": o["ContentType"], "etag": o["ETag"].strip('"')}))
`
	serverstest.Require(t, "moto") // boto3 comes with it
	python, err := servers.Python(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), python, "-c", program, m.URL, m.AccessKey, m.SecretKey, m.Region, bucket, res.Key)
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Logf("%s", exit.Stderr)
		}
		t.Fatalf("boto3: %v", err)
	}
	var got struct {
		SHA256, Type, ETag string
		Metadata           map[string]string
	}
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got.SHA256 != sha256Hex(body) || got.Type != "application/x-test" || got.Metadata["who"] != "me" || got.ETag != res.ETag {
		t.Errorf("boto3 reads %+v", got)
	}
	if r, err := guard.ParseRecord(got.Metadata[guard.RecordKey]); err != nil || r != res.Record {
		t.Errorf("record %v, %v; wrote %v", r, err, res.Record)
	}
}
