package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
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

With --save the result is kept at ROOT/.s3fence/profile.json, a guarded object,
written with a number of the issuer's (--issuer; s3fence init makes one). Without
one that passes, no command writes to a store that is not AWS.`,
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

// errFailedProof is the end of a doctor who found that a store fails. More is
// said after that.
func errFailedProof(url string, failed []string, more string) error {
	return &guard.Refusal{Reason: guard.ErrStoreUnsafe, URL: url, Detail: "it fails " + strings.Join(failed, ", ") + more,
		Cures: []string{"write elsewhere, or upgrade the store: no guard can make this one safe"}}
}

func (a *app) doctor(ctx context.Context, target string, quick, save bool) error {
	var checks []probe.Check
	j, err := a.prove(ctx, target, quick, save, func(c probe.Check) error {
		if checks = append(checks, c); a.json {
			return a.answer(checkJSON{
				"doctor-check", c.Property, c.Why, c.Wanted, c.Got, string(c.Verdict), c.Limit, c.Duration.Milliseconds(),
			}, "")
		}
		return nil
	})
	if err = errors.Join(a.showTable(checks), err); err != nil {
		j.failure = newFailure(err)
		return a.sayEnd(j, "", err)
	}
	return a.say(j, j.text())
}

// prove proves the bucket of target and, with save, keeps the profile. checked
// gets each check when it is done. That the store fails is an error, after it
// was saved.
func (a *app) prove(ctx context.Context, target string, quick, save bool, checked func(probe.Check) error) (doctorJSON, error) {
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
	counter, _, err := a.issuerBucket()
	if err != nil {
		return j, err
	}
	if save && counter != bucket { // which must be proven first, to be counted in
		if _, err := a.openIssuer(ctx); err != nil {
			return j, fmt.Errorf("--save takes a number from the issuer (s3fence init makes it, --issuer names another): %w", err)
		}
	}
	var shown error
	var bar *progress
	defer func() { bar.end() }()
	opts := &probe.Options{Quick: quick, Progress: func(done, total int, property string) {
		if bar == nil {
			bar = a.progress("proving", int64(total), checks)
		}
		bar.describe("proving " + property)
		bar.at(int64(done))
	}, Checked: func(c probe.Check) {
		shown = errors.Join(shown, checked(c))
	}, Interrupted: func(where string) {
		bar.end()
		if !a.quiet {
			fmt.Fprintf(a.stderr, "s3fence: interrupted: removing what was written under %s; a second interrupt leaves it there\n", where)
		}
	}}
	if rootBucket == bucket {
		opts.Prefix = root
	}
	t := probe.Target{Store: s.store, Bucket: bucket, Guarded: prefix}
	if s.client != nil {
		client := s3.New(s.client.Options(), s3.WithAPIOptions(a.logRequests))
		t.S3, t.Store = client, s3store.New(client, bucket, &s3store.Options{RequestPayer: a.payer()})
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
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("interrupted, nothing was proven: %w", err)
	}
	if err = errors.Join(shown, err); err != nil {
		return j, err
	}
	j.Outcome = "proven"
	var failed error
	if r.Verdict != probe.Pass {
		failed = errFailedProof(target, j.Failed, "")
	}
	if save {
		saved, err := a.saveProfile(ctx, s.endpoint, bucket, j)
		switch {
		case failed != nil && counter == bucket && errors.Is(err, guard.ErrStoreUnsafe):
			return j, errFailedProof(target, j.Failed, "; that is not saved, since the issuer counts in this very bucket, and no counter in it can be relied on")
		case err != nil:
			return j, errors.Join(failed, fmt.Errorf("save the profile: %w", err))
		}
		j.Saved = saved
	}
	return j, failed
}

// logRequests logs each request, as a guard logs its own.
func (a *app) logRequests(stack *middleware.Stack) error {
	return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("s3fence:log", func(
		ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler,
	) (middleware.DeserializeOutput, middleware.Metadata, error) {
		out, md, err := next.HandleDeserialize(ctx, in)
		if r, ok := in.Request.(*smithyhttp.Request); ok {
			a.log.DebugContext(ctx, "request", "method", r.Method, "url", r.URL.String(), "error", err)
		}
		return out, md, err
	}), middleware.Before)
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

// isProven reports whether the bucket that j is about has a profile, whoever
// saved it, that allows to write there and says of ETags what j found.
func (a *app) isProven(ctx context.Context, j doctorJSON) (bool, error) {
	bucket, _, err := parseURL(j.URL)
	if err != nil {
		return false, err
	}
	rootBucket, root, err := a.profileRoot(bucket)
	if err != nil {
		return false, err
	}
	s, err := a.openStore(ctx, rootBucket)
	if err != nil {
		return false, err
	}
	p, err := guard.StoredProfile(s.store, root, j.Endpoint, bucket)(ctx)
	if guard.ReasonOf(err) == guard.ErrStoreUnsafe {
		return false, nil
	}
	return err == nil && p.UniqueETags == j.UniqueETags && maps.Equal(p.ETagKinds, j.ETagKinds), err
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
			"or it was made anew, and the counter before it is gone for good: give it back its id, above every number that it gave" + reconcile,
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

const awsRegion = `[a-z]{2}(-gov|-iso[a-z]?)?-[a-z]+-[0-9]+`

// awsHost matches the hosts of S3 itself. Others under amazonaws.com are of
// whoever rents them, such as EC2's and those of load balancers, and s3express
// is another store. The SDK knows how to make these names and not how to tell
// them.
var awsHost = regexp.MustCompile(`^(.+\.)?(` +
	`s3|s3-external-1|s3-accelerate(\.dualstack)?|` +
	`s3(-fips)?[.-]` + awsRegion + `|s3(-fips)?\.dualstack\.` + awsRegion + `|` +
	`[^.]+\.s3-accesspoint(-fips)?(\.dualstack)?\.` + awsRegion + `|` +
	`vpce-[^.]+\.s3\.` + awsRegion + `\.vpce` +
	`)\.amazonaws\.com(\.cn)?$`)

// endpointHost names an endpoint in a profile: "aws" for S3's own hosts.
func endpointHost(endpoint string) (string, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" {
		return "", usagef("endpoint %q is not a URL such as http://127.0.0.1:9000", endpoint)
	}
	if awsHost.MatchString(strings.ToLower(u.Hostname())) {
		return awsEndpoint, nil
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

// showTable prints what was checked, for people.
func (a *app) showTable(checks []probe.Check) error {
	if a.json || a.quiet || len(checks) == 0 {
		return nil
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "VERDICT\tPROPERTY\tWHY IT MATTERS\tWANTED\tGOT")
	for _, c := range checks {
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
