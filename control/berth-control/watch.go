package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/spf13/pflag"

	"github.com/berth-node/berth/control/apiserver/audit"
	"github.com/berth-node/berth/control/apiserver/tracing"
)

// watchFlags are the flags of what is told of requests.
type watchFlags struct {
	audit   audit.Options
	tracing string
}

// The flags that say how the audit log is written.
const (
	flagMaxAge     = "audit-log-maxage"
	flagMaxBackups = "audit-log-maxbackup"
	flagMaxSize    = "audit-log-maxsize"
	flagFormat     = "audit-log-format"
)

func (f *watchFlags) add(p *pflag.FlagSet) {
	a := &f.audit
	p.StringVar(&a.Policy, "audit-policy-file", "", "file with a Policy of audit.k8s.io: which requests are told of, and how much")
	p.StringVar(&a.LogPath, "audit-log-path", "", "file to log requests to as the audit policy says; -: standard output")
	p.StringVar(&a.LogFormat, flagFormat, "json", "json or legacy, a line of text")
	p.IntVar(&a.LogMaxAge, flagMaxAge, 366, "days that old audit logs are kept; 0: any age")
	p.IntVar(&a.LogMaxBackups, flagMaxBackups, 100, "old audit logs that are kept; 0: any number")
	p.IntVar(&a.LogMaxSize, flagMaxSize, 100, "MiB of an audit log, after which it is put aside and a new one begun; 0: any size")
	p.StringVar(&a.Webhook, "audit-webhook-config-file", "", "file as a kubeconfig: where requests are told of as the audit policy says, in batches")
	p.StringVar(&f.tracing, "tracing-config-file", "", "file with a TracingConfiguration: where spans are sent by OTLP, and of how many requests")
}

// check finds flags that would say nothing.
func (f *watchFlags) check(p *pflag.FlagSet) error {
	for _, name := range []string{flagFormat, flagMaxAge, flagMaxBackups, flagMaxSize} {
		if p.Changed(name) && f.audit.LogPath == "" {
			return fmt.Errorf("--%s needs --audit-log-path, which says where the log is", name)
		}
	}
	return nil
}

// open has requests told of from now on. Both are of no effect where nobody has asked for them.
func (f *watchFlags) open(ctx context.Context, log *slog.Logger) (audit.Audit, *tracing.Provider, error) {
	told, err := audit.New(f.audit, log)
	if err != nil {
		return told, nil, err
	}
	spans, err := tracing.New(ctx, f.tracing, log)
	return told, spans, err
}
