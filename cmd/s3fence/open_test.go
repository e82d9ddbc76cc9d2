package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
)

// Many requests at once leave their connections to the next ones, each of
// which has one of its own.
func TestConnectionsAreKept(t *testing.T) {
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("tls=%t", secure), func(t *testing.T) {
			const atOnce = 128
			var opened, other atomic.Int64
			var here sync.WaitGroup // until all of a wave are
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.ProtoMajor != 1 {
					other.Add(1)
				}
				here.Done()
				here.Wait()
			}))
			s.EnableHTTP2 = true
			s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
				if state == http.StateNew {
					opened.Add(1)
				}
			}
			if secure {
				s.StartTLS()
			} else {
				s.Start()
			}
			defer s.Close()
			client := awshttp.NewBuildableClient().WithTransportOptions(tune, func(tr *http.Transport) {
				if secure {
					tr.TLSClientConfig = s.Client().Transport.(*http.Transport).TLSClientConfig
				}
			})
			for range 3 {
				here.Add(atOnce)
				var wave sync.WaitGroup
				for range atOnce {
					wave.Go(func() {
						if err := fetch(t.Context(), client, s.URL); err != nil {
							t.Error(err)
						}
					})
				}
				wave.Wait()
			}
			if opened.Load() != atOnce || other.Load() > 0 {
				t.Errorf("%d connections for %d requests at once, %d requests not over HTTP/1", opened.Load(), atOnce, other.Load())
			}
		})
	}
}

func fetch(ctx context.Context, client *awshttp.BuildableClient, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return err
}
