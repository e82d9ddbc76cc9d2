package main

import (
	"context"
	"fmt"
	"time"

	humanize "github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/s3fence/s3fence/guard"
)

// setFileJSON is the line of one file of a set.
type setFileJSON struct {
	Op     string `json:"op"` // publish-resolve
	URL    string `json:"url"`
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	CRC32C string `json:"crc32c"`
	Type   string `json:"content_type,omitempty"`
}

// setJSON is the line of a set.
type setJSON struct {
	Op  string `json:"op"` // publish-resolve-summary, publish-get
	URL string `json:"url"`
	failure
	File string `json:"file,omitempty"`
	fenceJSON
	Files    *int   `json:"files,omitempty"`
	Bytes    *int64 `json:"bytes,omitempty"`
	Requests int    `json:"requests,omitempty"`
	Millis   int64  `json:"ms,omitempty"`
}

func newSetJSON(op, outcome string, m guard.Manifest, err error) setJSON {
	j := setJSON{Op: op, URL: m.URL, fenceJSON: newFenceJSON(m.Record), Requests: m.Requests}
	if err != nil {
		j.failure = newFailure(err)
		return j
	}
	n, size := len(m.Files), setSize(m.Files)
	j.Outcome, j.Files, j.Bytes = outcome, &n, &size
	return j
}

func setSize(files []guard.SetFile) (size int64) {
	for _, f := range files {
		size += f.Size
	}
	return size
}

func (a *app) publishResolveCommand() *cobra.Command {
	var floor string
	c := &cobra.Command{
		Use:   "resolve DATASET",
		Short: "List the files of the set that was published last",
		Long: `Resolve prints the size and the name of each file of the set, sorted by name. With
--json there is one object for each, with the URL that it can be read from, and one
for the set. A dataset that was never published, or that was deleted, is not found.
With --min-token a set that was published before is refused; s3fence help get
says more of it.`,
		Example: `  # 1. what is in it?
  s3fence publish resolve s3://bucket/reports

  # 2. for a tool that reads objects itself
  s3fence publish resolve --json s3://bucket/reports | jq -r 'select(.name).url'`,
		Args:              nargs("DATASET"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	floorFlag(c, &floor)
	c.RunE = func(c *cobra.Command, args []string) error {
		floor, err := readFloor(c, floor)
		if err != nil {
			return err
		}
		return a.publishResolve(c.Context(), args[0], floor)
	}
	return c
}

// resolve resolves the set that url names.
func (a *app) resolve(ctx context.Context, url string, floor guard.Floor) (*guard.Guard, guard.Manifest, error) {
	bucket, dataset, err := parseDataset(url)
	if err != nil {
		return nil, guard.Manifest{}, err
	}
	g, err := a.openGuard(ctx, bucket)
	if err != nil {
		return nil, guard.Manifest{}, err
	}
	m, err := g.Resolve(ctx, dataset, &guard.GetOptions{Floor: floor})
	return g, m, err
}

func (a *app) publishResolve(ctx context.Context, url string, floor guard.Floor) error {
	_, m, err := a.resolve(ctx, url, floor)
	if err != nil {
		return err
	}
	bucket, _, err := parseURL(url)
	if err != nil {
		return err
	}
	for _, f := range m.Files {
		j := setFileJSON{"publish-resolve", "s3://" + bucket + "/" + f.Key(m.Dataset), f.Name, f.Size, f.Checksum.Value, f.ContentType}
		if err := a.answer(j, fmt.Sprintf("%11d %s", f.Size, printable(f.Name))); err != nil {
			return err
		}
	}
	if !a.json {
		return nil
	}
	return a.answer(newSetJSON("publish-resolve-summary", "resolved", m, nil), "")
}

func (a *app) publishGetCommand() *cobra.Command {
	var floor string
	o := guard.DownloadSetOptions{Concurrency: defaultConcurrency}
	c := &cobra.Command{
		Use:   "get DATASET DIR",
		Short: "Download the set that was published last",
		Long: `Get downloads the files of the set into the folder DIR, each compared with the
checksum that it was published with. If DIR is not there, it appears with all of
them, or not at all. If it is there, nothing in it is touched before all of them
have arrived; then each file is put in its place, one after the other: should the
machine fail in that moment, another get mends it. Other files in DIR stay. Nothing
is ever written outside DIR.`,
		Example: `  # 1. a folder of its own for each set
  s3fence publish get s3://bucket/reports reports-$(date +%F)

  # 2. not an older one than token 48's
  s3fence publish get --min-token 48 s3://bucket/reports copy`,
		Args: nargs("DATASET", "DIR"),
	}
	f := c.Flags()
	floorFlag(c, &floor)
	f.IntVar(&o.Concurrency, "concurrency", defaultConcurrency, "how many files at once")
	partSizeFlag(f, &o.PartSize, leastRead, "size of the parts that what is large is read in", "16MiB")
	c.RunE = func(c *cobra.Command, args []string) error {
		m := manyFlags{recursive: true, concurrency: o.Concurrency}
		if err := m.check(f); err != nil {
			return err
		}
		floor, err := readFloor(c, floor)
		if err != nil {
			return err
		}
		return a.publishGet(c.Context(), args[0], args[1], floor, o)
	}
	return c
}

func (a *app) publishGet(ctx context.Context, url, dir string, floor guard.Floor, o guard.DownloadSetOptions) error {
	if dir == "" {
		return usagef("DIR is empty")
	}
	begun := time.Now()
	g, m, err := a.resolve(ctx, url, floor)
	if err != nil {
		return err
	}
	bar := a.progress("fetching", setSize(m.Files), byteCount)
	defer bar.end()
	o.Progress = bar.add
	err = g.DownloadSet(ctx, m, dir, &o)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("interrupted: %w", err)
	}
	bar.end()
	j := newSetJSON("publish-get", fetched, m, err)
	text := ""
	if err == nil {
		j.File, j.Millis = dir, time.Since(begun).Milliseconds()
		text = fmt.Sprintf("fetched %s to %s: %s, %s, %s in %.1f s", printable(url), printable(dir), fenceText(m.Record),
			count(int64(len(m.Files)), "file"), humanize.IBytes(uint64(*j.Bytes)), time.Since(begun).Seconds())
	}
	return a.sayEnd(j, text, err)
}
