package localstack_test

import (
	"testing"

	"github.com/s3fence/s3fence/issuer/issuertest"
)

func TestLeaseConformance(t *testing.T) {
	dir := t.TempDir()
	issuertest.RunLeases(t, issuertest.Harness{
		Open:      func(t *testing.T) issuertest.Issuer { return openLocal(t, dir, nil) },
		MadeOnUse: true,
	})
}
