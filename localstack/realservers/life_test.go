package realservers

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/localstack/servers"
	"github.com/s3fence/s3fence/localstack/servers/serverstest"
	"github.com/s3fence/s3fence/s3store"
)

var large = flag.Bool("large", false, "adopt an object of 5.1 GiB too: takes 12 GB of disk and some minutes")

// Case 17: a versioned bucket, a plain delete around the guard, twice; and the
// way back.
func TestFenceLostAndRecovered(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	for sdk, open := range sdks {
		t.Run(sdk, func(t *testing.T) {
			bucket, client := newBucket(t, m), serverstest.S3Client(m)
			_, err := client.PutBucketVersioning(t.Context(), &s3.PutBucketVersioningInput{
				Bucket: &bucket, VersioningConfiguration: &s3types.VersioningConfiguration{Status: s3types.BucketVersioningStatusEnabled},
			})
			if err != nil {
				t.Fatal(err)
			}
			store := open(t, m, bucket)
			toks := take(t, local(t), "lost", 6)
			put := func(i int, body string) error {
				_, err := guard.New(store, nil).Put(t.Context(), toks[i], "k", guard.Bytes([]byte(body)), kms)
				return err
			}
			if err := errors.Join(put(0, "one"), put(1, "two")); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if _, err := client.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: &bucket, Key: aws.String("k")}); err != nil {
					t.Fatal(err)
				}
				if err := put(2, "three"); guard.ReasonOf(err) != guard.ErrFenceLost {
					t.Errorf("over a delete marker: %v", err)
				}
			}
			back := &guard.AdoptOptions{Recover: true}
			g := guard.New(store, nil)
			if _, err := g.Adopt(t.Context(), toks[1], "k", back); guard.ReasonOf(err) != guard.ErrReplayed {
				t.Errorf("with the number that was there: %v", err)
			}
			res, err := g.Adopt(t.Context(), toks[3], "k", back)
			if err != nil || res.Outcome != guard.Adopted || res.Previous.Number != 2 {
				t.Fatalf("%+v, %v", res, err)
			}
			if got := string(read(t, g, "k")); got != "two" {
				t.Errorf("it came back as %q", got)
			}
			if err := put(2, "three"); guard.ReasonOf(err) != guard.ErrStale {
				t.Errorf("an older owner afterwards: %v", err)
			}
			if err := put(4, "five"); err != nil {
				t.Error(err)
			}
		})
	}
}

// Case 21: the counter is set back, and made anew. The scope fence has seen
// what it gave before.
func TestCounterSetBack(t *testing.T) {
	m, d := serverstest.SharedMinIO(t), serverstest.SharedDynalite(t)
	table, client := newTable(t, d), serverstest.DynamoDBClient(d)
	g := guard.New(sdks["aws"](t, m, newBucket(t, m)), nil)
	iss := openIssuer(t, d, table)
	if _, _, err := iss.CreateScope(t.Context(), "back"); err != nil {
		t.Fatal(err)
	}
	var old guard.Token
	for range 5 {
		s, err := g.OpenSession(t.Context(), iss, "back", nil)
		if err != nil {
			t.Fatal(err)
		}
		old = s.Token()
	}
	key := map[string]types.AttributeValue{
		"scope": &types.AttributeValueMemberS{Value: "back"}, "item": &types.AttributeValueMemberS{Value: "counter"},
	}
	_, err := client.UpdateItem(t.Context(), &dynamodb.UpdateItemInput{
		TableName: &table, Key: key, UpdateExpression: aws.String("SET #n = :n"),
		ExpressionAttributeNames:  map[string]string{"#n": "number"},
		ExpressionAttributeValues: map[string]types.AttributeValue{":n": &types.AttributeValueMemberN{Value: "2"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	// Another process: this one remembers what the counter gave.
	if _, err := g.OpenSession(t.Context(), openIssuer(t, d, table), "back", nil); guard.ReasonOf(err) != guard.ErrIssuerRefuses {
		t.Errorf("a counter that went back: %v", err)
	}
	if _, err := client.DeleteItem(t.Context(), &dynamodb.DeleteItemInput{TableName: &table, Key: key}); err != nil {
		t.Fatal(err)
	}
	anew := openIssuer(t, d, table)
	if _, _, err := anew.CreateScope(t.Context(), "back"); err != nil {
		t.Fatal(err)
	}
	if _, err := g.OpenSession(t.Context(), anew, "back", nil); guard.ReasonOf(err) != guard.ErrIssuerMismatch {
		t.Errorf("a counter made anew: %v", err)
	}
	tok, err := anew.Issue(t.Context(), "back")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Put(t.Context(), tok, "untouched", guard.Bytes(nil), nil); guard.ReasonOf(err) != guard.ErrIssuerMismatch {
		t.Errorf("a write with its number: %v", err)
	}
	if _, err := g.Put(t.Context(), old, "k", guard.Bytes(nil), nil); err != nil {
		t.Errorf("the last owner: %v", err)
	}
}

// The scope fence stops an old owner at keys that the new one never touched,
// through both SDKs; case 33: its message names who holds the scope.
func TestScopeFence(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	for sdk, open := range sdks {
		t.Run(sdk, func(t *testing.T) {
			store, iss := open(t, m, newBucket(t, m)), local(t)
			root := &guard.Options{Root: "team/fences"}
			scope := "nightly/" + sdk
			older, err := guard.New(store, root).OpenSession(t.Context(), iss, scope, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := guard.New(store, root).OpenSession(t.Context(), iss, scope, nil); err != nil {
				t.Fatal(err)
			}
			// A process of its own, which has read nothing yet.
			late, err := guard.New(store, root).ResumeSession(t.Context(), older.Token(), &guard.SessionOptions{NoClaim: true})
			if err != nil {
				t.Fatal(err)
			}
			_, err = late.Put(t.Context(), "untouched", guard.Bytes([]byte("late")), nil)
			want := fmt.Sprintf("stale token 1 for %s: scope %s is claimed with 2", store.URL("untouched"), scope)
			if guard.ReasonOf(err) != guard.ErrStale || err.Error() != want {
				t.Errorf("got  %v\nwant %s", err, want)
			}
			if _, err := store.Head(t.Context(), "untouched", guard.HeadOptions{}); !errors.Is(err, guard.ErrNotFound) {
				t.Errorf("it was written: %v", err)
			}
		})
	}
}

// Case 28: a bucket with Object Lock and a default retention.
func TestObjectLock(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	for sdk, open := range sdks {
		t.Run(sdk, func(t *testing.T) {
			client := serverstest.S3Client(m)
			bucket := fmt.Sprintf("lock-%d", names.Add(1))
			if _, err := client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &bucket, ObjectLockEnabledForBucket: aws.Bool(true)}); err != nil {
				t.Fatal(err)
			}
			_, err := client.PutObjectLockConfiguration(t.Context(), &s3.PutObjectLockConfigurationInput{
				Bucket: &bucket,
				ObjectLockConfiguration: &s3types.ObjectLockConfiguration{
					ObjectLockEnabled: s3types.ObjectLockEnabledEnabled,
					Rule: &s3types.ObjectLockRule{DefaultRetention: &s3types.DefaultRetention{
						Mode: s3types.ObjectLockRetentionModeGovernance, Days: aws.Int32(1),
					}},
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			g := guard.New(open(t, m, bucket), nil)
			toks := take(t, local(t), "lock", 6)
			for i, body := range []string{"one", "two"} {
				if _, err := g.Put(t.Context(), toks[i], "k", guard.Bytes([]byte(body)), kms); err != nil {
					t.Fatalf("put %d: %v", i, err)
				}
			}
			// In parts as well.
			if _, err := g.PutStream(t.Context(), toks[0], "large", bytes.NewReader(make([]byte, 17<<20)), nil); err != nil {
				t.Errorf("in parts: %v", err)
			}
			if res, err := g.Delete(t.Context(), toks[2], "k", nil); err != nil || res.Outcome != guard.Removed {
				t.Errorf("delete: %+v, %v", res, err)
			}
			if _, _, err := g.Get(t.Context(), "k", nil); !errors.Is(err, guard.ErrNotFound) {
				t.Errorf("a tombstone: %v", err)
			}
			// What was there stays under its retention: only a bypass gets at it.
			var kept int
			for v, err := range guard.Versions(t.Context(), open(t, m, bucket), "k") {
				if err != nil {
					t.Fatal(err)
				}
				kept++
				_, err = client.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: &bucket, Key: aws.String("k"), VersionId: &v.ID})
				if err == nil {
					t.Errorf("version %s under retention was deleted", v.ID)
				}
			}
			if kept != 3 {
				t.Errorf("%d versions, want two and the tombstone", kept)
			}
			if _, err := client.PutObject(t.Context(), &s3.PutObjectInput{Bucket: &bucket, Key: aws.String("theirs"), Body: strings.NewReader("theirs")}); err != nil {
				t.Fatal(err)
			}
			if _, err := g.Adopt(t.Context(), toks[3], "theirs", nil); err != nil {
				t.Errorf("adopt: %v", err)
			}
		})
	}
}

// Case 28, its other half: who pays is said in every request.
func TestRequesterPays(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	for sdk, open := range map[string]func(s *servers.Server, bucket string) guard.Store{
		"aws": func(s *servers.Server, bucket string) guard.Store {
			return s3store.New(serverstest.S3Client(s), bucket, &s3store.Options{RequestPayer: true})
		},
		"minio-go": func(s *servers.Server, bucket string) guard.Store {
			return s3store.NewMinIO(serverstest.MinIOClient(t, s), bucket, &s3store.Options{RequestPayer: true})
		},
	} {
		t.Run(sdk, func(t *testing.T) {
			bucket := newBucket(t, m)
			through, proxy := behind(t, m, "")
			g := guard.New(open(through, bucket), nil)
			toks := take(t, local(t), "payer", 9)
			if _, err := serverstest.S3Client(m).PutObject(t.Context(), &s3.PutObjectInput{Bucket: &bucket, Key: aws.String("theirs"), Body: strings.NewReader("x")}); err != nil {
				t.Fatal(err)
			}
			_, err1 := g.Put(t.Context(), toks[0], "k", guard.Bytes([]byte("x")), kms)
			_, err2 := g.PutStream(t.Context(), toks[0], "large", bytes.NewReader(make([]byte, 17<<20)), nil)
			_, err3 := g.Adopt(t.Context(), toks[1], "theirs", nil)
			_, err4 := g.Delete(t.Context(), toks[2], "k", nil)
			_, err5 := g.Claim(t.Context(), toks[3], nil)
			read(t, g, "theirs")
			if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
				t.Fatal(err)
			}
			for info, err := range g.Walk(t.Context(), "", nil) {
				if err != nil {
					t.Errorf("%+v, %v", info, err)
				}
			}
			for _, r := range proxy.Requests() {
				settings := r.Key == "" && (strings.Contains(r.Query, "versioning") || strings.Contains(r.Query, "encryption") || strings.Contains(r.Query, "location"))
				// minio-go has no way to say it there.
				unable := sdk == "minio-go" && (strings.Contains(r.Query, "tagging"))
				if !settings && !unable && r.Header.Get("X-Amz-Request-Payer") != "requester" {
					t.Errorf("%s %s?%s says nothing", r.Method, r.Path, r.Query)
				}
			}
		})
	}
}

// zeros is a sparse file, without the file.
type zeros struct{}

func (zeros) ReadAt(p []byte, _ int64) (int, error) {
	clear(p)
	return len(p), nil
}

// around writes an object around the guard, a large one in parts.
func around(t *testing.T, s guard.Store, key string, size int64) {
	t.Helper()
	headers := guard.Headers{
		ContentType: "text/csv", CacheControl: "no-cache", ContentDisposition: "inline", ContentLanguage: "de",
		Expires: "Wed, 02 Dec 2026 00:00:00 GMT", Metadata: map[string]string{"owner": "somebody", "x": "1"},
	}
	tags := map[string]string{"team": "red", "cost": "a b"}
	if size <= 10<<20 {
		_, err := s.Put(t.Context(), key, guard.PutRequest{
			Condition: guard.IfAbsent(), Body: guard.ReaderAt(zeros{}, size), Headers: headers, Tags: tags,
		})
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	up, err := s.CreateUpload(t.Context(), key, guard.UploadRequest{Headers: headers, Tags: tags})
	if err != nil {
		t.Fatal(err)
	}
	part := min(512<<20, size/2)
	var parts []guard.Part
	for sent := int64(0); sent < size; sent += part {
		p, err := s.UploadPart(t.Context(), up, len(parts)+1, guard.ReaderAt(zeros{}, min(part, size-sent)))
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, p)
	}
	if _, err := s.CompleteUpload(t.Context(), up, guard.CompleteRequest{Condition: guard.IfAbsent(), Parts: parts}); err != nil {
		t.Fatal(err)
	}
}

// Adoption keeps bytes, headers, metadata and tags, whatever the size.
func TestAdoptSizes(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	sizes := []int64{0, 1 << 10, 5<<20 + 1, 20 << 20}
	if *large {
		sizes = append(sizes, 51<<30/10)
	}
	for sdk, open := range sdks {
		for _, size := range sizes {
			t.Run(fmt.Sprintf("%s/%d", sdk, size), func(t *testing.T) {
				bucket, key := newBucket(t, m), "dir/ü +%.csv"
				store := open(t, m, bucket)
				around(t, store, key, size)
				before, err := store.Head(t.Context(), key, guard.HeadOptions{})
				if err != nil {
					t.Fatal(err)
				}
				sumBefore := contentSum(t, store, key)
				g := guard.New(store, nil)
				tok := take(t, local(t), "adopt", 1)[0]
				if _, err := g.Put(t.Context(), tok, key, guard.Bytes(nil), kms); guard.ReasonOf(err) != guard.ErrUnfenced {
					t.Errorf("before: %v", err)
				}
				res, err := g.Adopt(t.Context(), tok, key, nil)
				if err != nil || res.Outcome != guard.Adopted || res.Bytes != size {
					t.Fatalf("%+v, %v", res, err)
				}
				info, err := g.Stat(t.Context(), key)
				if err != nil || info.Record == nil || *info.Record != res.Record {
					t.Fatalf("%+v, %v", info, err)
				}
				if info.ETag == before.ETag || info.Size != size {
					t.Errorf("ETag %s was %s, size %d", info.ETag, before.ETag, info.Size)
				}
				h, was := info.Headers, before.Headers
				delete(h.Metadata, guard.RecordKey)
				if !maps.Equal(h.Metadata, was.Metadata) {
					t.Errorf("metadata %v was %v", h.Metadata, was.Metadata)
				}
				h.Metadata, was.Metadata = nil, nil
				if fmt.Sprint(h) != fmt.Sprint(was) {
					t.Errorf("headers %+v were %+v", h, was)
				}
				tags, err := store.Tags(t.Context(), key, "")
				if err != nil || !maps.Equal(tags, map[string]string{"team": "red", "cost": "a b"}) {
					t.Errorf("tags %v, %v", tags, err)
				}
				if sum := contentSum(t, store, key); sum != sumBefore {
					t.Errorf("bytes %s were %s", sum, sumBefore)
				}
			})
		}
	}
}

// An adopted object stays under the encryption, and the key, that it had.
func TestAdoptEncrypted(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	for sdk, open := range sdks {
		t.Run(sdk, func(t *testing.T) {
			store := open(t, m, newBucket(t, m))
			_, err := store.Put(t.Context(), "k", guard.PutRequest{Condition: guard.IfAbsent(), Body: guard.Bytes([]byte("secret")), SSE: "aws:kms"})
			if err != nil {
				t.Fatal(err)
			}
			before, err := store.Head(t.Context(), "k", guard.HeadOptions{})
			if err != nil || before.SSE != "aws:kms" || before.SSEKMSKeyID == "" {
				t.Fatalf("%+v, %v", before, err)
			}
			g := guard.New(store, nil)
			if _, err := g.Adopt(t.Context(), take(t, local(t), "kms", 1)[0], "k", nil); err != nil {
				t.Fatal(err)
			}
			info, err := g.Stat(t.Context(), "k")
			if err != nil || info.SSE != before.SSE || info.SSEKMSKeyID != before.SSEKMSKeyID || info.ETag == before.ETag {
				t.Errorf("%+v, %v; was %+v", info, err, before)
			}
			if got := string(read(t, g, "k")); got != "secret" {
				t.Errorf("holds %q", got)
			}
		})
	}
}

// contentSum reads an object to its end, in constant memory.
func contentSum(t *testing.T, s guard.Store, key string) string {
	t.Helper()
	_, r, err := s.Get(t.Context(), key, guard.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h := (guard.Checksum{Algorithm: "SHA256"}).NewHash()
	n, err := io.Copy(h, r)
	if err = errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d:%x", n, h.Sum(nil))
}

// Case 31: a copy that replaces the metadata, as other tools make them, drops
// the fence record.
func TestRecordDroppedByACopy(t *testing.T) {
	m := serverstest.SharedMinIO(t)
	bucket, client := newBucket(t, m), serverstest.S3Client(m)
	g := guard.New(sdks["aws"](t, m, bucket), nil)
	toks := take(t, local(t), "copy", 3)
	if _, err := g.Put(t.Context(), toks[0], "a", guard.Bytes([]byte("bytes")), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CopyObject(t.Context(), &s3.CopyObjectInput{
		Bucket: &bucket, Key: aws.String("b"), CopySource: aws.String(bucket + "/a"), MetadataDirective: s3types.MetadataDirectiveReplace,
	}); err != nil {
		t.Fatal(err)
	}
	_, err := g.Put(t.Context(), toks[1], "b", guard.Bytes(nil), kms)
	var r *guard.Refusal
	if !errors.As(err, &r) || r.Reason != guard.ErrUnfenced || !strings.Contains(r.Cures[0], "adopt") {
		t.Errorf("%v", err)
	}
	if _, err := g.Adopt(t.Context(), toks[1], "b", nil); err != nil {
		t.Error(err)
	}
	if _, err := g.Put(t.Context(), toks[2], "b", guard.Bytes([]byte("new")), kms); err != nil {
		t.Error(err)
	}
}

// Case 5: the upload is aborted behind our back, and another object stands at
// the key. Case 6 and 7 for a completion.
func TestUploadFaults(t *testing.T) {
	for _, tt := range []struct {
		name, faults string
		want         func(res guard.Result, err error) bool
	}{
		{"case 1: answer lost", "POST key=k query=uploadId drop-answer", func(res guard.Result, err error) bool {
			return err == nil && res.Outcome == guard.AlreadyApplied
		}},
		{"case 6: 200 with an error", "POST key=k query=uploadId error-in-200", func(res guard.Result, err error) bool {
			return err == nil && res.Outcome == guard.Created
		}},
		{"case 7: 409 once", "POST key=k query=uploadId status=409", func(res guard.Result, err error) bool {
			return err == nil && res.Outcome == guard.Created
		}},
		{"case 7: 409 for ever", "POST key=k query=uploadId times=all status=409", func(_ guard.Result, err error) bool {
			return errors.Is(err, guard.ErrConflict) && guard.ReasonOf(err) == ""
		}},
		{"answer cut", "POST key=k query=uploadId truncate-answer", func(res guard.Result, err error) bool {
			return err == nil && res.Outcome == guard.AlreadyApplied
		}},
		{"500 to two parts", "PUT key=k query=partNumber times=2 status=500", func(res guard.Result, err error) bool {
			return err == nil && res.Outcome == guard.Created
		}},
	} {
		for sdk, open := range sdks {
			t.Run(tt.name+"/"+sdk, func(t *testing.T) {
				m := serverstest.SharedMinIO(t)
				bucket := newBucket(t, m)
				through, _ := behind(t, m, tt.faults)
				b := bytes.Repeat([]byte("0123456789abcdef"), 17<<16)
				tok := take(t, local(t), "faults", 1)[0]
				res, err := guard.New(open(t, through, bucket), impatient).Put(t.Context(), tok, "k", guard.Bytes(b), nil)
				if !tt.want(res, err) {
					t.Errorf("%+v, %v", res, err)
				}
				direct := open(t, m, bucket)
				if err == nil && !bytes.Equal(read(t, guard.New(direct, nil), "k"), b) {
					t.Error("it holds something else")
				}
				for up, err := range direct.Uploads(t.Context(), "") {
					t.Errorf("left behind: %+v, %v", up, err)
				}
			})
		}
	}
}
