package s3store_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/minio/minio-go/v7"
	miniocreds "github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/s3store"
)

// A nothing store takes every write and holds no object.
type nothing struct{}

func (nothing) RoundTrip(req *http.Request) (*http.Response, error) {
	res := &http.Response{
		StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: http.NoBody, Request: req,
	}
	switch {
	case req.Method == http.MethodPut:
		res.Header.Set("ETag", `"0123456789abcdef0123456789abcdef"`)
		_, err := io.Copy(io.Discard, req.Body)
		return res, err
	case req.URL.Query().Has("versioning"):
		res.Body = io.NopCloser(strings.NewReader("<VersioningConfiguration/>"))
	default:
		res.StatusCode = http.StatusNotFound
		res.Body = io.NopCloser(strings.NewReader("<Error><Code>NoSuchKey</Code></Error>"))
	}
	return res, nil
}

// What the guard adds to a small object at a new key: the same request by the
// SDK alone, by the adapter, and by a session.
func BenchmarkSmallPut(b *testing.B) {
	body := randomBytes(4 << 10)
	c := s3.New(s3.Options{
		Region: "us-east-1", BaseEndpoint: aws.String("http://localhost:9"), UsePathStyle: true,
		Credentials:                credentials.NewStaticCredentialsProvider("AKIATEST", secret, ""),
		HTTPClient:                 &http.Client{Transport: nothing{}},
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenSupported,
	})
	m, err := minio.New("localhost:9", &minio.Options{
		Creds: miniocreds.NewStaticV4("AKIATEST", secret, ""), Region: "us-east-1", Transport: nothing{}, MaxRetries: 1,
	})
	if err != nil {
		b.Fatal(err)
	}
	id, err := guard.ParseIssuerID("8c1d0f2ab64e97d3")
	if err != nil {
		b.Fatal(err)
	}
	tok, err := guard.NewToken(id, "bench", 1)
	if err != nil {
		b.Fatal(err)
	}
	record := map[string]string{guard.RecordKey: guard.Record{Issuer: id, Scope: "bench", Number: 1, Sequence: 1, State: guard.Live}.String()}
	run := func(name string, put func(key string) error) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				if err := put(fmt.Sprintf("dir/%09d", n)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	run("sdk=aws/raw", func(key string) error {
		_, err := c.PutObject(b.Context(), &s3.PutObjectInput{
			Bucket: aws.String("bucket"), Key: &key, Body: bytes.NewReader(body), IfNoneMatch: aws.String("*"),
			Metadata: record, ChecksumAlgorithm: types.ChecksumAlgorithmCrc32c,
		})
		return err
	})
	for sdk, store := range map[string]guard.Store{"aws": s3store.New(c, "bucket", nil), "minio-go": s3store.NewMinIO(m, "bucket", nil)} {
		run("sdk="+sdk+"/store", func(key string) error {
			_, err := store.Put(b.Context(), key, guard.PutRequest{
				Condition: guard.IfAbsent(), Body: guard.Bytes(body), Headers: guard.Headers{Metadata: record},
			})
			return err
		})
		s, err := guard.New(store, nil).ResumeSession(b.Context(), tok, &guard.SessionOptions{NoClaim: true})
		if err != nil {
			b.Fatal(err)
		}
		run("sdk="+sdk+"/session", func(key string) error {
			_, err := s.Put(b.Context(), key, guard.Bytes(body), &guard.PutOptions{ExpectAbsent: true})
			return err
		})
	}
}
