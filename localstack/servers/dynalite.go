package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// DynaliteOptions configure [StartDynalite]; nil is all defaults.
type DynaliteOptions struct {
	// Dir is made if absent and keeps the tables. Default: a temporary
	// folder that goes with Stop.
	Dir string
}

// StartDynalite starts dynalite, installing it first where it is neither on
// PATH nor in the cache. Tables are ready as soon as they are made. It takes
// any credentials. ctx bounds the start only: the server runs until Stop.
func StartDynalite(ctx context.Context, opts *DynaliteOptions) (*Server, error) {
	if opts == nil {
		opts = &DynaliteOptions{}
	}
	argv, err := findDynalite(ctx, io.Discard)
	if err != nil {
		return nil, err
	}
	s, err := newServer(spec{
		name:  "dynalite",
		ports: 1,
		command: func(s *Server) *exec.Cmd {
			return exec.Command(argv[0], append(argv[1:len(argv):len(argv)],
				"--host", "127.0.0.1", "--port", strconv.Itoa(s.ports[0].number),
				"--path", filepath.Join(s.dir, "data"),
				"--createTableMs", "0", "--updateTableMs", "0", "--deleteTableMs", "0")...)
		},
		ready: func(ctx context.Context, s *Server) error {
			return listsTables(ctx, s, "Dynalite listening at")
		},
	}, opts.Dir)
	if err != nil {
		return nil, err
	}
	// It makes its own folder, but not the way to it.
	if err := os.MkdirAll(filepath.Join(s.dir, "data"), 0o700); err != nil {
		_ = s.removeTemp()
		return nil, fmt.Errorf("servers: dynalite: %w", err)
	}
	s.AccessKey, s.SecretKey, s.Region = "test", "test", "us-east-1"
	return s.start(ctx)
}

// listsTables waits for printed, which the server prints when the port is its
// own: the answer alone could be another process's. Then it asks for ListTables.
func listsTables(ctx context.Context, s *Server, printed string) error {
	if !strings.Contains(s.out.String(), printed) {
		return errors.New("not listening yet")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/", strings.NewReader("{}"))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-amz-json-1.0")
	req.Header.Set("X-Amz-Target", "DynamoDB_20120810.ListTables")
	req.Header.Set("X-Amz-Date", "20260101T000000Z")
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+s.AccessKey+"/20260101/"+s.Region+
		"/dynamodb/aws4_request, SignedHeaders=host;x-amz-date, Signature=0")
	return answers200(req)
}

// probe keeps no connection: a server that answers one request at a time
// would wait for the next one on it.
var probe = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func answers200(req *http.Request) error {
	resp, err := probe.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers %s", resp.Status)
	}
	return nil
}
