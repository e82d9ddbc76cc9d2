package servers

import (
	"context"
	_ "embed"
	"io"
	"os/exec"
	"strconv"
)

//go:embed moto/serve.py
var motoLauncher string

// MotoOptions configure [StartMoto]; nil is all defaults. There are none yet.
type MotoOptions struct{}

// StartMoto starts moto (S3, DynamoDB and more at one URL), answering one
// request at a time: with its own threads it gives two callers the same
// number. It keeps everything in memory, so Restart starts it empty. It takes
// any credentials. ctx bounds the start only: the server runs until Stop.
func StartMoto(ctx context.Context, _ *MotoOptions) (*Server, error) {
	python, err := findMoto(ctx, io.Discard)
	if err != nil {
		return nil, err
	}
	s, err := newServer(spec{
		name:  "moto",
		ports: 1,
		command: func(s *Server) *exec.Cmd {
			return exec.Command(python, "-c", motoLauncher, strconv.Itoa(s.ports[0].number))
		},
		ready: func(ctx context.Context, s *Server) error {
			return listsTables(ctx, s, "s3fence: moto is listening")
		},
	}, "")
	if err != nil {
		return nil, err
	}
	s.AccessKey, s.SecretKey, s.Region = "test", "test", "us-east-1"
	return s.start(ctx)
}
