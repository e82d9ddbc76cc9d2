package servers

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// MinIOOptions configure [StartMinIO]; nil is all defaults.
type MinIOOptions struct {
	// Dir is made if absent and keeps the data, and in credentials.json,
	// readable by its owner only, the root user's keys and the KMS key: what
	// was encrypted by one start is read by the next. Default: a temporary
	// folder that goes with Stop.
	Dir string
	// NoKMS leaves the key service off: aws:kms is refused, so every
	// single-part ETag is an MD5. Default: on, with a key named s3fence-key.
	NoKMS bool
	// NoCompat runs it with --no-compat, where every write gets a unique
	// ETag. Default: ETags as S3 has them.
	NoCompat bool
}

// StartMinIO starts MinIO, building it first where it is neither on PATH nor
// in the cache, which takes minutes. ctx bounds the start only: the server
// runs until Stop. Credentials are random for each new data folder.
func StartMinIO(ctx context.Context, opts *MinIOOptions) (*Server, error) {
	if opts == nil {
		opts = &MinIOOptions{}
	}
	path, err := findMinIO(ctx, io.Discard)
	if err != nil {
		return nil, err
	}
	var keys minioKeys
	noKMS, noCompat := opts.NoKMS, opts.NoCompat
	s, err := newServer(spec{
		name:  "minio",
		ports: 2,
		command: func(s *Server) *exec.Cmd {
			args := []string{"server"}
			if noCompat {
				args = append(args, "--no-compat")
			}
			args = append(args,
				"--address", s.ports[0].address(), "--console-address", s.ports[1].address(),
				// The default is in the home folder, and a certificate there turns TLS on.
				"--certs-dir", filepath.Join(s.dir, "certs"),
				filepath.Join(s.dir, "data"))
			cmd := exec.Command(path, args...)
			cmd.Env = []string{
				"MINIO_ROOT_USER=" + keys.AccessKey, "MINIO_ROOT_PASSWORD=" + keys.SecretKey,
				"MINIO_BROWSER=off", "MINIO_UPDATE=off",
			}
			if !noKMS {
				cmd.Env = append(cmd.Env, "MINIO_KMS_SECRET_KEY=s3fence-key:"+keys.KMSKey)
			}
			return cmd
		},
		ready: minioReady,
	}, opts.Dir)
	if err != nil {
		return nil, err
	}
	if keys, err = loadMinIOKeys(s.dir); err != nil {
		_ = s.removeTemp()
		return nil, fmt.Errorf("servers: minio: %w", err)
	}
	s.AccessKey, s.SecretKey, s.Region = keys.AccessKey, keys.SecretKey, "us-east-1"
	s.out.secrets = []string{keys.SecretKey, keys.KMSKey}
	return s.start(ctx)
}

// minioReady lists the buckets. Only the process that was given the random
// root password answers that, and only once it can serve.
func minioReady(ctx context.Context, s *Server) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/", nil)
	if err != nil {
		return err
	}
	const emptySHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	req.Header.Set("X-Amz-Content-Sha256", emptySHA256)
	keys := aws.Credentials{AccessKeyID: s.AccessKey, SecretAccessKey: s.SecretKey}
	if err := v4.NewSigner().SignHTTP(ctx, keys, req, emptySHA256, "s3", s.Region, time.Now()); err != nil {
		return err
	}
	if err := answers200(req); err != nil {
		return err
	}
	return minioGivesCredentials(ctx, s, keys)
}

// minioGivesCredentials waits for what MinIO is ready for last: right after its
// start it serves objects, and no session's credentials yet. Whether it refuses
// them for another reason is for whoever asks for some.
func minioGivesCredentials(ctx context.Context, s *Server, keys aws.Credentials) error {
	const form = "Action=AssumeRole&Version=2011-06-15&DurationSeconds=3600"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/", strings.NewReader(form))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	sum := sha256.Sum256([]byte(form))
	if err := v4.NewSigner().SignHTTP(ctx, keys, req, hex.EncodeToString(sum[:]), "sts", s.Region, time.Now()); err != nil {
		return err
	}
	res, err := probe.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	if err == nil && strings.Contains(string(text), "not initialized") {
		err = errors.New("it gives no session's credentials yet")
	}
	return err
}

type minioKeys struct {
	AccessKey string `json:"access_key"`
	SecretKey string `json:"secret_key"`
	KMSKey    string `json:"kms_key"`
}

// loadMinIOKeys reads the folder's keys, or makes them. MinIO encrypts its own
// settings with the KMS key, so a folder can't be served with another.
func loadMinIOKeys(dir string) (minioKeys, error) {
	path := filepath.Join(dir, "credentials.json")
	var keys minioKeys
	text, err := os.ReadFile(path)
	if err == nil {
		if err := json.Unmarshal(text, &keys); err != nil {
			return keys, fmt.Errorf("%s: %w", path, err)
		}
		if keys.AccessKey == "" || keys.SecretKey == "" || keys.KMSKey == "" {
			return keys, fmt.Errorf("%s: a key is missing", path)
		}
		return keys, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return keys, err
	}
	kms := make([]byte, 32)
	rand.Read(kms)
	keys = minioKeys{
		AccessKey: "s3fence-" + rand.Text()[:12],
		SecretKey: rand.Text(),
		KMSKey:    base64.StdEncoding.EncodeToString(kms),
	}
	if text, err = json.MarshalIndent(keys, "", "  "); err != nil {
		return keys, err
	}
	// Linked, not renamed, into place: of two that start at once on a new
	// folder both use the first one's keys, and one is told that it is in use.
	f, err := os.CreateTemp(dir, "credentials-*")
	if err != nil {
		return keys, err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(append(text, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return keys, err
	}
	if err := os.Link(f.Name(), path); errors.Is(err, os.ErrExist) {
		return loadMinIOKeys(dir)
	} else if err != nil {
		return keys, err
	}
	return keys, nil
}
