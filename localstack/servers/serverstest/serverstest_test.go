package serverstest

import (
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/s3fence/s3fence/localstack/servers"
)

func TestAskedFor(t *testing.T) {
	for text, want := range map[string][]string{
		"":                nil,
		"all":             servers.Names(),
		"minio":           {"minio"},
		"moto, dynalite,": {"moto", "dynalite"},
	} {
		if got, err := askedFor(text); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"mino", "minio,all", "1"} {
		if got, err := askedFor(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestRequireSkipsWhatIsNotAskedFor(t *testing.T) {
	t.Setenv(Variable, "minio")
	ok := t.Run("one of two", func(t *testing.T) {
		Require(t, "minio")
		Require(t, "minio", "moto")
		t.Error("not skipped")
	})
	mu.Lock()
	defer mu.Unlock()
	if !ok || !leftOut["moto"] || leftOut["minio"] {
		t.Errorf("left out: %v", leftOut)
	}
}

func TestName(t *testing.T) {
	t.Run("A/b c_ü"+strings.Repeat("long", 30), func(t *testing.T) {
		one, two := Name(t), Name(t)
		if one == two || !regexp.MustCompile(`^[a-z][a-z0-9-]{2,61}[a-z0-9]$`).MatchString(one) {
			t.Errorf("%s, %s", one, two)
		}
	})
}
