package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/s3fence/s3fence/guard"
	"github.com/s3fence/s3fence/issuer"
)

// leaseJSON is what lease show prints.
type leaseJSON struct {
	Op string `json:"op"` // lease-show
	failure
	Scope  string    `json:"scope"`
	Owner  string    `json:"owner"`
	Token  int64     `json:"token"`
	Issuer string    `json:"issuer"`
	Since  time.Time `json:"since"`
	Beat   time.Time `json:"last_heartbeat"`
	TTL    int64     `json:"ttl_ms"`
	// Moves is there with --watch.
	Moves *bool `json:"moves,omitempty"`
}

func (a *app) leaseCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "lease",
		Short: "See who holds a scope's lease",
		Long: `A scope's lease chooses one owner at a time, for as long as heartbeats renew it.
s3fence run takes it. It is for order only: what refuses a former owner is the
token that each write carries.`,
		Example: `  # 1. who is running?
  s3fence lease show --scope nightly/report`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	var watch bool
	show := &cobra.Command{
		Use:   "show",
		Short: "Print who holds the lease of --scope",
		Long: `Show prints who holds the lease, or held it last: since when, with which token,
and when the last heartbeat was. The times are of the owner's clock.

With --watch it looks on until the lease moves, which shows that its owner lives,
or has stood still for its whole TTL, after which others may take it.`,
		Example: `  # 1. who is running?
  s3fence lease show --scope nightly/report

  # 2. does it live?
  s3fence lease show --scope nightly/report --watch --json | jq .moves`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.leaseShow(c.Context(), watch) },
	}
	show.Flags().BoolVar(&watch, "watch", false, "look on until it moves, at most for its TTL")
	c.AddCommand(show)
	return c
}

// openLeases opens the issuer, whose leases are kept beside its counters.
func (a *app) openLeases(ctx context.Context) (issuer.LeaseStore, error) {
	iss, err := a.openIssuer(ctx)
	if err != nil {
		return nil, err
	}
	leases, ok := iss.(issuer.LeaseStore)
	if !ok {
		return nil, usagef("this issuer keeps no leases")
	}
	return leases, nil
}

func (a *app) leaseShow(ctx context.Context, watch bool) error {
	scope, err := a.needScope()
	if err != nil {
		return err
	}
	leases, err := a.openLeases(ctx)
	if err != nil {
		return err
	}
	var r issuer.LeaseRecord
	var moves bool
	if watch {
		r, moves, err = issuer.WatchLease(ctx, leases, scope)
	} else {
		r, err = leases.Lease(ctx, scope)
	}
	switch {
	case err != nil:
		return err
	case r.Version.IsZero():
		return fmt.Errorf("scope %s was never leased: %w", scope, guard.ErrNotFound)
	}
	j := leaseJSON{
		Op: "lease-show", Scope: scope, Owner: r.Owner, Token: r.Token.Number(), Issuer: r.Token.Issuer().String(),
		Since: r.Since.UTC(), Beat: r.Beat.UTC(), TTL: r.TTL.Milliseconds(),
	}
	j.Outcome = "held"
	text := "held by"
	if r.Released {
		j.Outcome, text = "released", "free; it was held by"
	}
	text = fmt.Sprintf("scope %s is %s %s\nlast heartbeat %s, ttl %v", scope, text, printable(r.String()), r.Beat.UTC().Format(time.RFC3339), r.TTL)
	if watch && !r.Released {
		j.Moves = &moves
		if moves {
			text += "\nit moves: its owner lives"
		} else {
			text += "\nit stood still for all of that time: others may take it"
		}
	}
	return a.answer(j, text)
}
