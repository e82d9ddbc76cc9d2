package main

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/s3fence/s3fence/guard"
)

type statJSON struct {
	Op  string `json:"op"`
	URL string `json:"url"`
	failure
	State string `json:"state,omitempty"` // live, deleted
	fenceJSON
	ETag      string            `json:"etag,omitempty"`
	ETagKind  string            `json:"etag_kind,omitempty"`
	VersionID string            `json:"version_id,omitempty"`
	SSE       string            `json:"sse,omitempty"`
	Type      string            `json:"content_type,omitempty"`
	Metadata  map[string]string `json:"metadata,omitempty"`
	Modified  *time.Time        `json:"last_modified,omitempty"`
	Bytes     *int64            `json:"bytes,omitempty"`
	Requests  int               `json:"requests,omitempty"`
}

func (a *app) statCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "stat URL",
		Short: "Show the fence state of one object",
		Long: `Stat shows which token wrote the object, and what else the guard knows of it.
It exits with 13 when the object is not fenced or its record is corrupt, and
with 1 when there is none. A tombstone is shown as deleted.`,
		Example: `  # 1. who wrote it last?
  s3fence stat s3://bucket/reports/today.csv

  # 2. the number alone
  s3fence stat --json s3://bucket/reports/today.csv | jq .token`,
		Args: nargs("URL"),
		RunE: func(c *cobra.Command, args []string) error { return a.stat(c.Context(), args[0]) },
	}
}

func (a *app) stat(ctx context.Context, url string) error {
	g, key, err := a.openObject(ctx, url)
	if err != nil {
		return err
	}
	info, err := g.Stat(ctx, key)
	if err == nil && info.Record == nil {
		err = &guard.Refusal{Reason: guard.ErrUnfenced, Key: key, URL: info.URL, Detail: "it carries no fence record"}
	}
	j := newStatJSON(url, info)
	if err != nil {
		j.failure = newFailure(err)
		return a.sayEnd(j, "", err)
	}
	return a.answer(j, j.text())
}

func newStatJSON(url string, info guard.Info) statJSON {
	j := statJSON{Op: "stat", URL: url, fenceJSON: newFenceJSON(info.Record), Requests: info.Requests}
	if r := info.Record; r != nil {
		j.Outcome, j.State = "fenced", r.State.String()
		if r.State == guard.Deleted {
			j.Outcome = "tombstone"
		}
	}
	if info.ETag == "" {
		return j
	}
	j.ETag, j.ETagKind, j.VersionID, j.SSE = strings.Trim(info.ETag, `"`), string(info.ETagKind), info.VersionID, info.SSE
	j.Type, j.Bytes = info.ContentType, &info.Size
	if !info.LastModified.IsZero() {
		t := info.LastModified.UTC()
		j.Modified = &t
	}
	j.Metadata = maps.Clone(info.Metadata)
	delete(j.Metadata, guard.RecordKey)
	return j
}

func (j statJSON) text() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, printable(value))
		}
	}
	row("url", j.URL)
	row("state", j.State)
	row("token", fmt.Sprint(j.Token))
	row("sequence", fmt.Sprint(j.Sequence))
	row("scope", j.Scope)
	row("issuer", j.Issuer)
	row("write id", j.WriteID)
	row("etag", strings.TrimSpace(j.ETag+"  "+j.ETagKind))
	row("version", j.VersionID)
	row("encryption", j.SSE)
	row("type", j.Type)
	if j.Bytes != nil {
		row("bytes", fmt.Sprint(*j.Bytes))
	}
	if j.Modified != nil {
		row("modified", j.Modified.Format(time.RFC3339))
	}
	_ = w.Flush() // a strings.Builder takes everything
	return strings.TrimRight(b.String(), "\n")
}
