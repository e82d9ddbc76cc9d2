package serverstest

import (
	"net/url"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/minio/minio-go/v7"
	miniocreds "github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/s3fence/s3fence/localstack/servers"
)

// At returns s as it is reached through another address, such as a proxy's.
// It is for clients: it has no process, and can't be stopped.
func At(s *servers.Server, url string) *servers.Server {
	return &servers.Server{URL: url, AccessKey: s.AccessKey, SecretKey: s.SecretKey, Region: s.Region}
}

// S3Client returns a client of aws-sdk-go-v2, set up as its own configuration
// loading does.
func S3Client(s *servers.Server) *s3.Client {
	return s3.New(s3.Options{
		Region: s.Region, BaseEndpoint: &s.URL, UsePathStyle: true,
		Credentials:                credentials.NewStaticCredentialsProvider(s.AccessKey, s.SecretKey, ""),
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenSupported,
	})
}

// MinIOClient returns a client of minio-go that makes one attempt per request.
func MinIOClient(t testing.TB, s *servers.Server) *minio.Client {
	t.Helper()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	c, err := minio.New(u.Host, &minio.Options{
		Creds: miniocreds.NewStaticV4(s.AccessKey, s.SecretKey, ""), Region: s.Region, MaxRetries: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// DynamoDBClient returns a client of aws-sdk-go-v2.
func DynamoDBClient(s *servers.Server) *dynamodb.Client {
	return dynamodb.New(dynamodb.Options{
		Region: s.Region, BaseEndpoint: &s.URL,
		Credentials: credentials.NewStaticCredentialsProvider(s.AccessKey, s.SecretKey, ""),
	})
}
