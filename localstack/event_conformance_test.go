package localstack_test

import (
	"testing"

	"github.com/s3fence/s3fence/issuer/issuertest"
)

func TestEventConformance(t *testing.T) {
	dir := t.TempDir()
	issuertest.RunEvents(t, issuertest.Harness{
		Open:      func(t *testing.T) issuertest.Issuer { return openLocal(t, dir, nil) },
		MadeOnUse: true,
	})
}
