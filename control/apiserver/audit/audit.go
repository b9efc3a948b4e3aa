// Package audit tells of requests as a policy says: to a log, and to a webhook. Neither holds up the server, whatever
// becomes of its disk or its receiver.
package audit

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/serializer"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	auditlog "k8s.io/apiserver/plugin/pkg/audit/log"
)

// Options are what is told and where, as kube-apiserver has them.
type Options struct {
	Policy string // a file
	// LogPath is a file, or "-": standard output. MaxAge is in days and MaxSize in MiB; 0 bounds nothing.
	LogPath, LogFormat                   string
	LogMaxAge, LogMaxBackups, LogMaxSize int
	Webhook                              string // a file, as a kubeconfig
}

// Audit is what a server tells of requests by. Both are nil if it tells of none.
type Audit struct {
	Rules   audit.PolicyRuleEvaluator
	Backend audit.Backend
}

// New reads the policy, and makes what is written to. Nothing is written before it runs.
func New(o Options, log *slog.Logger) (Audit, error) {
	if err := o.check(); err != nil {
		return Audit{}, err
	}
	if o.Policy == "" {
		return Audit{}, nil
	}
	rules, err := readPolicy(o.Policy)
	if err != nil {
		return Audit{}, fmt.Errorf("read audit policy %s: %w", o.Policy, err)
	}
	var all []audit.Backend
	if o.LogPath != "" {
		b, err := newLog(o, log)
		if err != nil {
			return Audit{}, fmt.Errorf("open audit log %s: %w", o.LogPath, err)
		}
		all = append(all, b)
	}
	if o.Webhook != "" {
		b, err := newWebhook(o.Webhook, log)
		if err != nil {
			return Audit{}, fmt.Errorf("read audit webhook %s: %w", o.Webhook, err)
		}
		all = append(all, b)
	}
	return Audit{Rules: policy.NewPolicyRuleEvaluator(rules), Backend: audit.Union(all...)}, nil
}

// check finds what is wrong without reading a file. One flag without the other would tell of nothing.
func (o Options) check() error {
	switch {
	case o.LogPath != "" && o.Policy == "":
		return errors.New("--audit-log-path needs --audit-policy-file, which says what is logged")
	case o.Webhook != "" && o.Policy == "":
		return errors.New("--audit-webhook-config-file needs --audit-policy-file, which says what is sent")
	case o.Policy != "" && o.LogPath+o.Webhook == "":
		return errors.New("--audit-policy-file needs --audit-log-path or --audit-webhook-config-file, which say where to")
	case o.LogPath == "":
		return nil
	case !slices.Contains(auditlog.AllowedFormats, o.LogFormat):
		return fmt.Errorf("read --audit-log-format %q: it is one of %s", o.LogFormat, strings.Join(auditlog.AllowedFormats, ", "))
	}
	for name, value := range map[string]int{"maxage": o.LogMaxAge, "maxbackup": o.LogMaxBackups, "maxsize": o.LogMaxSize} {
		if value < 0 {
			return fmt.Errorf("read --audit-log-%s %d: it is not below 0", name, value)
		}
	}
	return nil
}

// readPolicy reads a policy. Kubernetes only warns of a field that there is not. Here it is an error: it would be a
// rule that somebody believes to hold.
func readPolicy(file string) (*auditapi.Policy, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	strict := serializer.NewCodecFactory(audit.Scheme, serializer.EnableStrict).UniversalDecoder()
	if _, _, err := strict.Decode(text, nil, &auditapi.Policy{}); err != nil {
		return nil, err
	}
	return policy.LoadPolicyFromBytes(text)
}
