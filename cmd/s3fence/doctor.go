package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/spf13/cobra"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/localstack"
	"github.com/s3fence/s3fence/s3store"
	"github.com/s3fence/s3fence/s3store/probe"
)

// checkJSON is one line of doctor's JSON.
type checkJSON struct {
	Op       string `json:"op"` // doctor-check
	Property string `json:"property"`
	Why      string `json:"why"`
	Wanted   string `json:"wanted"`
	Got      string `json:"got"`
	Verdict  string `json:"verdict"`
	Limit    string `json:"limit,omitempty"`
	Millis   int64  `json:"ms"`
}

// doctorJSON is its last line.
type doctorJSON struct {
	Op  string `json:"op"`
	URL string `json:"url"`
	failure
	Verdict     string                    `json:"verdict,omitempty"` // pass, fail
	Failed      []string                  `json:"failed,omitempty"`
	Limits      []string                  `json:"limits,omitempty"`
	UniqueETags bool                      `json:"unique_etags"`
	ETagKinds   map[string]guard.ETagKind `json:"etag_kinds,omitempty"`
	Endpoint    string                    `json:"endpoint,omitempty"`
	Quick       bool                      `json:"quick,omitempty"`
	Probe       int                       `json:"probe"`
	Saved       string                    `json:"saved,omitempty"`
	Millis      int64                     `json:"ms"`
}

func (a *app) doctorCommand() *cobra.Command {
	var quick, save bool
	c := &cobra.Command{
		Use:   "doctor URL",
		Short: "Prove with real requests what a store honours",
		Long: `Doctor writes small objects under ROOT/.s3fence/probe-RANDOM/ of the bucket,
races many writers for them, and removes them again. It changes no setting of
the bucket. It prints, for each property, what was wanted and what came.

It exits with 15 when a property fails that guarded PUTs need. What only
multipart uploads or another capability need is a limit: the store passes, and
the profile says so. An error of the network is no verdict.

With --save the result is kept at ROOT/.s3fence/profile.json, a guarded object.
Without one that passes, no command writes to a store that is not AWS.`,
		Example: `  # 1. what does this store do?
  s3fence doctor s3://bucket

  # 2. the same in a few seconds, and let guarded writes rely on it
  s3fence doctor --quick --save s3://bucket

  # 3. what failed?
  s3fence doctor --json s3://bucket | jq -r 'select(.verdict == "fail").property'`,
		Args: nargs("URL"),
	}
	f := c.Flags()
	f.BoolVar(&quick, "quick", false, "smaller races and shorter hunts: a few seconds")
	f.BoolVar(&save, "save", false, "keep the result as the store's profile")
	c.RunE = func(c *cobra.Command, args []string) error { return a.doctor(c.Context(), args[0], quick, save) }
	return c
}

// errFailedProof is the end of a doctor who found that a store fails.
func errFailedProof(url string, failed []string) error {
	return &guard.Refusal{Reason: guard.ErrStoreUnsafe, URL: url, Detail: "it fails " + strings.Join(failed, ", "),
		Cures: []string{"write elsewhere, or upgrade the store: no guard can make this one safe"}}
}

func (a *app) doctor(ctx context.Context, target string, quick, save bool) error {
	j, err := a.prove(ctx, target, quick, save, func(r probe.Report) error { return a.showChecks(r) })
	if err != nil {
		j.failure = newFailure(err)
		return a.sayEnd(j, "", err)
	}
	return a.say(j, j.text())
}

// prove proves the bucket of target and, with save, keeps the profile. show
// gets the report first, also an unfinished one. That the store fails is an
// error, after it was saved.
func (a *app) prove(ctx context.Context, target string, quick, save bool, show func(probe.Report) error) (doctorJSON, error) {
	j := doctorJSON{Op: "doctor", URL: target, Quick: quick, Probe: probe.Version}
	bucket, prefix, err := parseURL(target)
	if err != nil {
		return j, err
	}
	s, err := a.openStore(ctx, bucket)
	if err != nil {
		return j, err
	}
	j.Endpoint = s.endpoint
	rootBucket, root, err := a.profileRoot(bucket)
	if err != nil {
		return j, err
	}
	var bar *progress
	defer func() { bar.end() }()
	opts := &probe.Options{Quick: quick, Progress: func(done, total int, property string) {
		if bar == nil {
			bar = a.progress("proving", int64(total), checks)
		}
		bar.describe("proving " + property)
		bar.at(int64(done))
	}}
	if rootBucket == bucket {
		opts.Prefix = root
	}
	t := probe.Target{Store: s.store, Bucket: bucket, Guarded: prefix}
	if s.client != nil {
		t.S3 = s.client
	} else {
		t.Remove = func(ctx context.Context, key string) error { return s.local.Remove(ctx, bucket, key) }
	}
	r, err := probe.Run(ctx, t, opts)
	bar.end()
	j.Verdict, j.Limits, j.UniqueETags, j.ETagKinds = string(r.Verdict), r.Limits, r.UniqueETags, r.ETagKinds
	j.Millis = r.Duration.Milliseconds()
	for _, c := range r.Checks {
		if c.Verdict == probe.Fail {
			j.Failed = append(j.Failed, c.Property)
		}
	}
	if err = errors.Join(show(r), err); err != nil {
		return j, err
	}
	var failed error
	j.Outcome = "proven"
	if r.Verdict != probe.Pass {
		failed = errFailedProof(target, j.Failed)
	}
	if save {
		saved, err := a.saveProfile(ctx, s.endpoint, bucket, j)
		if err != nil {
			return j, errors.Join(failed, fmt.Errorf("save the profile: %w", err))
		}
		j.Saved = saved
	}
	return j, failed
}

func (a *app) saveProfile(ctx context.Context, endpoint, bucket string, j doctorJSON) (string, error) {
	rootBucket, root, err := a.profileRoot(bucket)
	if err != nil {
		return "", err
	}
	p := guard.Profile{
		Endpoint: endpoint, Bucket: bucket, Pass: len(j.Failed) == 0, Failed: j.Failed, Limits: j.Limits,
		UniqueETags: j.UniqueETags, ETagKinds: j.ETagKinds, Probe: j.Probe, Quick: j.Quick, Proven: time.Now().UTC().Truncate(time.Second),
	}
	if p.Pass {
		a.keepProfile(bucket, p) // before it is saved: the issuer may count in this bucket
	}
	iss, err := a.openIssuer(ctx)
	if err != nil {
		return "", err
	}
	if _, _, err := iss.CreateScope(ctx, guard.ProfileScope); err != nil {
		return "", err
	}
	tok, err := iss.Issue(ctx, guard.ProfileScope)
	if err != nil {
		return "", err
	}
	s, err := a.openStore(ctx, rootBucket)
	if err != nil {
		return "", err
	}
	res, err := guard.New(s.store, &guard.Options{Logger: a.log}).SaveProfile(ctx, tok, root, p)
	if r := new(guard.Refusal); errors.As(err, &r) {
		cureProfile(r, "s3://"+rootBucket+"/"+guard.RootKey(root, ""))
	}
	return res.URL, err
}

// cureProfile puts the cures into a refused profile that are about its counter,
// which nobody claims. Own is the URL of s3fence's own folder.
func cureProfile(r *guard.Refusal, own string) {
	reconcile := ": s3fence token reconcile --scope " + guard.ProfileScope + " --scan " + own
	switch r.Reason {
	case guard.ErrStale, guard.ErrReplayed:
		r.Cures = []string{
			"another doctor may have saved one meanwhile: run it again",
			"else the counter has gone back: raise it above every number that it gave" + reconcile,
		}
	case guard.ErrIssuerMismatch:
		r.Cures = []string{
			"the profile was saved with a number of another counter: point --issuer at the one that gave " + r.Held.Fence().String(),
			"or it was made anew: give it back its id, above every number that it gave" + reconcile,
		}
	}
}

// root returns where s3fence's own objects for bucket are: --root, else the
// top of the bucket.
func (a *app) root(bucket string) (rootBucket, prefix string, err error) {
	text, _ := a.setting("root")
	if text == "" {
		return bucket, "", nil
	}
	if rootBucket, prefix, err = parseURL(text); err != nil {
		return "", "", fmt.Errorf("--root: %w", err)
	}
	return rootBucket, strings.TrimRight(prefix, "/"), nil
}

// profileRoot returns where the profile of bucket is: under the root. One in
// another bucket serves several, so it has a folder for each.
func (a *app) profileRoot(bucket string) (rootBucket, prefix string, err error) {
	rootBucket, prefix, err = a.root(bucket)
	if rootBucket != bucket {
		prefix = strings.TrimLeft(prefix+"/"+bucket, "/")
	}
	return rootBucket, prefix, err
}

// An opened is a bucket, and what it takes to prove it.
type opened struct {
	store guard.Store
	// endpoint is the host that it is reached at; "aws" where it is AWS's
	// own, "local" for the embedded one. Neither needs a profile.
	endpoint string
	client   *s3.Client        // nil for the embedded store
	local    *localstack.Local // nil for the others
}

const awsEndpoint, localEndpoint = "aws", "local"

// openStore opens a bucket.
func (a *app) openStore(ctx context.Context, bucket string) (opened, error) {
	l, err := a.openLocal()
	if err != nil {
		return opened{}, err
	}
	if l != nil {
		return opened{store: l.Store(bucket), endpoint: localEndpoint, local: l}, nil
	}
	client, err := a.s3Client(ctx)
	if err != nil {
		return opened{}, err
	}
	o := opened{store: s3store.New(client, bucket, &s3store.Options{RequestPayer: a.payer()}), endpoint: awsEndpoint, client: client}
	if e := client.Options().BaseEndpoint; e != nil {
		if o.endpoint, err = endpointHost(*e); err != nil {
			return opened{}, err
		}
	}
	return o, nil
}

// endpointHost names an endpoint in a profile: "aws" for AWS's own hosts.
func endpointHost(endpoint string) (string, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" {
		return "", usagef("endpoint %q is not a URL such as http://127.0.0.1:9000", endpoint)
	}
	host := strings.ToLower(u.Hostname())
	for _, suffix := range []string{".amazonaws.com", ".amazonaws.com.cn"} {
		if strings.HasSuffix(host, suffix) {
			return awsEndpoint, nil
		}
	}
	return strings.ToLower(u.Host), nil
}

// profileSource is where the profile of bucket is read; nil when none is needed.
func (a *app) profileSource(ctx context.Context, bucket string, s opened) (guard.ProfileSource, error) {
	off, err := a.noProfile()
	if off || err != nil || s.endpoint == awsEndpoint || s.endpoint == localEndpoint {
		return nil, err
	}
	rootBucket, root, err := a.profileRoot(bucket)
	if err != nil {
		return nil, err
	}
	store := s.store
	if rootBucket != bucket {
		r, err := a.openStore(ctx, rootBucket)
		if err != nil {
			return nil, err
		}
		store = r.store
	}
	read := guard.StoredProfile(store, root, s.endpoint, bucket)
	return func(ctx context.Context) (guard.Profile, error) {
		if p, ok := a.profiles[bucket]; ok {
			return p, nil
		}
		p, err := read(ctx)
		if err == nil {
			a.keepProfile(bucket, p)
		}
		return p, err
	}, nil
}

// keepProfile keeps what allows to write to bucket, for this run.
func (a *app) keepProfile(bucket string, p guard.Profile) {
	if a.profiles == nil {
		a.profiles = map[string]guard.Profile{}
	}
	a.profiles[bucket] = p
}

func (a *app) noProfile() (bool, error) {
	if a.skipProfile {
		return true, nil
	}
	switch v := a.getenv("S3FENCE_NO_PROFILE"); strings.ToLower(v) {
	case "", "0", "false":
		return false, nil
	case "1", "true":
		return true, nil
	default:
		return false, usagef("S3FENCE_NO_PROFILE is %q; it is 1 or 0", v)
	}
}

// showChecks prints the table, or one object a check.
func (a *app) showChecks(r probe.Report) error {
	if a.json {
		for _, c := range r.Checks {
			if err := a.answer(checkJSON{
				"doctor-check", c.Property, c.Why, c.Wanted, c.Got, string(c.Verdict), c.Limit, c.Duration.Milliseconds(),
			}, ""); err != nil {
				return err
			}
		}
		return nil
	}
	if a.quiet || len(r.Checks) == 0 {
		return nil
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "VERDICT\tPROPERTY\tWHY IT MATTERS\tWANTED\tGOT")
	for _, c := range r.Checks {
		verdict := string(c.Verdict)
		if c.Verdict == probe.Fail {
			verdict = "FAIL"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", verdict, c.Property, c.Why, c.Wanted, c.Got)
	}
	_ = w.Flush() // a strings.Builder takes everything
	return a.answer(nil, strings.TrimRight(b.String(), "\n"))
}

// text is the last lines for people.
func (j doctorJSON) text() string {
	s := "\n" + j.URL + ": " + j.Verdict
	if len(j.Limits) > 0 {
		s += " with limits: " + strings.Join(j.Limits, ", ")
	}
	s += fmt.Sprintf(" (%.1f s)", float64(j.Millis)/1000)
	if j.Saved != "" {
		s += "\nsaved as " + j.Saved
	}
	return s
}
