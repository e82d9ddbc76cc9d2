package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/guard/state"
	"github.com/s3fence/s3fence/issuer"
	"github.com/s3fence/s3fence/localstack"
)

// app is one run of the command line.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string

	flags   *pflag.FlagSet // the persistent ones
	json    bool
	quiet   bool
	verbose bool
	logFmt  string
	log     *slog.Logger
	ran     bool // a command began: later errors are not usage errors by themselves
	aws     *aws.Config
	local   *localstack.Local
	said    bool // something went to standard output

	terminal io.Writer                // standard error, when somebody is watching
	shown    atomic.Pointer[progress] // on it

	closers []func() error

	fenceMaxAge time.Duration            // --fence-max-age
	skipProfile bool                     // --no-profile
	profiles    map[string]guard.Profile // read, by bucket
	remembered  *state.File              // --state
}

// settings are the common flags that have a twin in the environment. What the
// SDK reads by itself (AWS_REGION, AWS_PROFILE, AWS_ENDPOINT_URL...) is not
// listed: an empty flag leaves it to the SDK.
var settings = []struct{ flag, env, usage string }{
	{"endpoint-url", "", "S3 endpoint `URL` (MinIO, R2, ...) [AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL]"},
	{"dynamodb-endpoint-url", "", "DynamoDB endpoint `URL` [AWS_ENDPOINT_URL_DYNAMODB, AWS_ENDPOINT_URL]"},
	{"region", "", "AWS region [AWS_REGION]"},
	{"profile", "", "profile of the AWS configuration files [AWS_PROFILE]"},
	{"addressing", "", "bucket in the path or the host name: auto, path, virtual (auto: path when an endpoint is set)"},
	{"issuer", "S3FENCE_ISSUER", "where tokens come from: dynamodb://TABLE (default dynamodb://s3fence), or s3://BUCKET/PREFIX [S3FENCE_ISSUER]"},
	{"local", "S3FENCE_LOCAL", "embedded store and issuer kept in `DIR`: no account, no server [S3FENCE_LOCAL]"},
	{"root", "S3FENCE_ROOT", "where scope fences and the store's profile are kept, s3://`BUCKET/PREFIX` (default: the top of the bucket) [S3FENCE_ROOT]"},
	{"request-payer", "", "requester: agree to be charged, as requester-pays buckets demand"},
	{"token", "S3FENCE_TOKEN", "fencing token, or @FILE that holds it [S3FENCE_TOKEN]"},
	{"scope", "S3FENCE_SCOPE", "take a fresh token of this scope for this command [S3FENCE_SCOPE]"},
}

// setting returns the flag's value, else the environment's. fromFlag says which.
func (a *app) setting(name string) (value string, fromFlag bool) {
	f := a.flags.Lookup(name)
	if f.Changed {
		return f.Value.String(), true
	}
	for _, s := range settings {
		if s.flag == name && s.env != "" {
			return a.getenv(s.env), false
		}
	}
	return "", false
}

func (a *app) main(ctx context.Context, args []string) int {
	root := a.command()
	root.SetArgs(args)
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	c, err := root.ExecuteContextC(ctx)
	if err != nil && !a.ran {
		err = usageError{err}
		// A flag that can't be read ends the reading of flags.
		a.json = a.json || slices.Contains(args, "--json")
	}
	if !errors.As(err, new(reportedError)) {
		a.report(err)
	}
	for _, c := range a.closers {
		if cerr := c(); cerr != nil {
			a.report(cerr)
			err = errors.Join(err, cerr)
		}
	}
	if err != nil && a.json && !a.said {
		op := strings.ReplaceAll(strings.TrimPrefix(c.CommandPath(), "s3fence "), " ", "-")
		f := failureJSON{Op: op, failure: newFailure(err)}
		if serr := a.answer(f, ""); serr != nil {
			a.report(serr)
		}
	}
	return exitCode(err)
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "s3fence",
		Short: "Write to object storage under fencing tokens, so that late writers do no harm",
		Long: `s3fence writes to S3 (or MinIO, R2, any store that speaks S3) under fencing
tokens: numbers that only rise. The object itself refuses a number that is not
higher than the one it holds, so a writer that was paused, and wakes after a
newer owner has written, can't overwrite the newer data.

Exit codes: 0 done, 1 failed, 2 usage, 10 stale, 11 replayed, 12 token missing
or malformed, 13 object unfenced, its record corrupt, or fence lost, 14 issuer
or scope mismatch, 15 store not safe or repeatable ETag, 16 outcome unknown, 17
lease held by another, or lost, 18 issuer refuses, 130 interrupted, 141 nobody
reads the output. Of several objects the worst counts: 16, then 10, then the
first.`,
		Example: `  # 1. upload under a fresh token, with nothing to start and no account
  s3fence put --local ./demo --scope nightly/report report.csv s3://demo/report.csv

  # 2. the same on S3, with a token taken before the work began
  s3fence init --scope nightly/report
  export S3FENCE_TOKEN=$(s3fence token issue --scope nightly/report)
  s3fence put report.csv s3://bucket/report.csv`,
		Version:           version(),
		SilenceUsage:      true,
		SilenceErrors:     true,
		Args:              cobra.NoArgs,
		PersistentPreRunE: func(*cobra.Command, []string) error { return a.start() },
		RunE:              func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetVersionTemplate("s3fence {{.Version}}\n")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	a.flags = root.PersistentFlags()
	for _, s := range settings {
		a.flags.String(s.flag, "", s.usage)
	}
	a.flags.BoolVar(&a.skipProfile, "no-profile", false, "write to a store that is not AWS although nobody has proven it [S3FENCE_NO_PROFILE]")
	a.flags.DurationVar(&a.fenceMaxAge, "fence-max-age", guard.DefaultFenceMaxAge, "how old a reading of the scope fence a write may rely on; 0 reads it at every write")
	a.flags.BoolVar(&a.json, "json", false, "one JSON object a line on standard output")
	a.flags.BoolVarP(&a.quiet, "quiet", "q", false, "say nothing but errors")
	a.flags.BoolVarP(&a.verbose, "verbose", "v", false, "log each request to standard error")
	a.flags.StringVar(&a.logFmt, "log-format", "", "text or json [S3FENCE_LOG]")
	fixed(root, "addressing", "auto", "path", "virtual")
	fixed(root, "log-format", "text", "json")
	fixed(root, "request-payer", "requester")
	root.AddCommand(a.initCommand(), a.tokenCommand(), a.putCommand(), a.getCommand(), a.catCommand(), a.statCommand(), a.lsCommand(), a.rmCommand(), a.adoptCommand(), a.publishCommand(), a.claimCommand(), a.leaseCommand(), a.runCommand(), a.auditCommand(), a.doctorCommand(), a.policyCommand(), a.demoCommand())
	completionExamples(root)
	return root
}

// completionExamples puts examples into the help of cobra's own command.
func completionExamples(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() != "completion" {
			continue
		}
		c.Example = `  # 1. for this shell only
  source <(s3fence completion bash)

  # 2. for every new zsh
  s3fence completion zsh > "${fpath[1]}/_s3fence"`
		for _, shell := range c.Commands() {
			switch shell.Name() {
			case "fish":
				shell.Example = "  # 1. for this shell only\n  s3fence completion fish | source"
			case "powershell":
				shell.Example = "  # 1. for this shell only\n  s3fence completion powershell | Out-String | Invoke-Expression"
			default:
				shell.Example = "  # 1. for this shell only\n  source <(s3fence completion " + shell.Name() + ")"
			}
		}
	}
}

// version is the module's, as the go command stamped it.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

// start is what every command does first.
func (a *app) start() error {
	if a.logFmt == "" {
		a.logFmt = a.getenv("S3FENCE_LOG")
	}
	a.watch()
	opts := &slog.HandlerOptions{Level: slog.LevelWarn}
	switch {
	case a.verbose && a.quiet:
		return usagef("-v and -q exclude each other")
	case a.verbose:
		opts.Level = slog.LevelDebug
	case a.quiet:
		opts.Level = slog.LevelError
	}
	switch a.logFmt {
	case "", "text":
		a.log = slog.New(slog.NewTextHandler(a.stderr, opts))
	case "json":
		a.log = slog.New(slog.NewJSONHandler(a.stderr, opts))
	default:
		return usagef("log format %q is neither text nor json", a.logFmt)
	}
	for _, s := range settings {
		if f := a.flags.Lookup(s.flag); f.Changed && f.Value.String() == "" && s.flag != "token" {
			return usagef("--%s is empty", s.flag)
		}
	}
	if payer, _ := a.setting("request-payer"); payer != "" && payer != "requester" {
		return usagef("--request-payer %q is not requester", payer)
	}
	a.ran = true
	return nil
}

// say prints what a command did, which -q leaves out: v as JSON, or the text.
func (a *app) say(v any, text string) error {
	if a.quiet && !a.json {
		return nil
	}
	return a.answer(v, text)
}

// answer prints what a command was asked for.
func (a *app) answer(v any, text string) error {
	if a.json {
		b, err := json.Marshal(v)
		if err != nil {
			return err
		}
		text = string(b)
	}
	_, err := a.print([]byte(text + "\n"))
	return err
}

// errOutputClosed is of a standard output that nobody reads any more. It is not
// reported: whoever closed it knows.
var errOutputClosed = errors.New("standard output is closed")

// exitPipe is what shells say of a program that wrote to such a pipe.
const exitPipe = 128 + 13

// print writes to standard output.
func (a *app) print(b []byte) (int, error) {
	a.said = true // so that a failure later on adds nothing to half of an answer
	n, err := a.stdout.Write(b)
	if err == nil {
		return n, nil
	}
	for p := new(fs.PathError); errors.As(err, &p); {
		err = p.Err // the name says no more
	}
	if errors.Is(err, syscall.EPIPE) {
		return n, &exitError{fmt.Errorf("%w: %w", errOutputClosed, err), exitPipe}
	}
	return n, fmt.Errorf("write to standard output: %w", err)
}

// onlyClosed reports whether err says nothing but errOutputClosed.
func onlyClosed(err error) bool {
	switch e := any(err).(type) {
	case interface{ Unwrap() error }:
		return onlyClosed(e.Unwrap())
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(err error) bool { return !onlyClosed(err) })
	}
	return err == errOutputClosed || err == syscall.EPIPE
}

// sayEnd prints how a command ended for one object, and returns err. In text,
// an error is only reported, at the very end.
func (a *app) sayEnd(v any, text string, err error) error {
	if err != nil && !a.json {
		return err
	}
	switch serr := a.say(v, text); {
	case serr == nil:
		return err
	case err == nil:
		return fmt.Errorf("%s\nit is done, and only this could not be printed: %w", text, serr)
	default:
		a.report(serr)
		return err
	}
}

// report prints an error, and what can be done about it, to standard error.
func (a *app) report(err error) {
	if err != nil {
		a.reportLine(err)
		a.hint(err)
	}
}

func (a *app) reportLine(err error) {
	if onlyClosed(err) {
		return
	}
	prefix := "s3fence: "
	if refused(err) {
		prefix += "refused: "
	}
	fmt.Fprintf(a.stderr, "%s%s\n", prefix, printable(oneLine(err.Error())))
}

// hint prints what can be done about an error.
func (a *app) hint(err error) {
	var hints []string
	var r *guard.Refusal
	var i *issuer.Error
	var l *issuer.LeaseError
	switch {
	case errors.As(err, &r):
		hints = r.Cures
	case errors.As(err, &i):
		hints = i.Cures
	case errors.As(err, &l):
		hints = l.Cures
	case errors.As(err, new(usageError)):
		hints = []string{"s3fence help shows the commands, s3fence help COMMAND one with an example"}
	}
	for _, h := range hints {
		fmt.Fprintf(a.stderr, "s3fence: hint: %s\n", printable(oneLine(h)))
	}
}

// oneLine keeps a message on one line, so that a log stays one line a message.
func oneLine(s string) string { return strings.Join(strings.FieldsFunc(s, isNewline), "; ") }

func isNewline(r rune) bool { return r == '\n' || r == '\r' }

// printable escapes what a terminal would obey, or not show: keys may hold
// anything.
func printable(s string) string {
	if !strings.ContainsFunc(s, unprintable) && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case unprintable(r):
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		default:
			b.WriteRune(r)
		}
		s = s[n:]
	}
	return b.String()
}

func unprintable(r rune) bool { return !strconv.IsPrint(r) }

// usageError is a wrong call.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// nargs checks the number of arguments and names those that are missing.
func nargs(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		return usagef("%s takes %s, got %d arguments", c.CommandPath(), strings.Join(names, " and "), len(args))
	}
}

// openFile is os.Open with a message that says what it was for.
func openFile(name, what string) (*os.File, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return f, nil
}
