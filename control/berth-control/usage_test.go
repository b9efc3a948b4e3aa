package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-node/berth/internal/commandline"
)

// refusal is why berth-control does not do what arguments say that end it before it does anything.
func refusal(t *testing.T, args ...string) error {
	t.Helper()
	_, err := execute(append([]string{"--data-dir", t.TempDir()}, args...)...)
	return err
}

// TestWrongUsage wants what is wrong with a command line to be told by the exit code, with what would be right.
func TestWrongUsage(t *testing.T) {
	var each func(c *cobra.Command)
	each = func(c *cobra.Command) {
		path := strings.Fields(c.CommandPath())[1:]
		if err := refusal(t, append(path, "--no-flag-of-any")...); exitCode(err) != commandline.ExitUsage {
			t.Errorf("%s --no-flag-of-any: %v", c.CommandPath(), err)
		}
		for _, sub := range c.Commands() {
			if !sub.Hidden && sub.Name() != "help" {
				each(sub)
			}
		}
	}
	each(newCommand())
	for args, want := range map[string]string{
		"tokn":                             "did you mean join or token?",
		"token creat":                      "did you mean create?",
		"certs lst":                        "did you mean list?",
		"etcd status x":                    "Usage: berth-control etcd status",
		"serve --servic-cidr x":            "did you mean --service-cidr?",
		"serve --snapshot-interval=1ns":    "it is 0, or at least",
		"serve --log-level loud":           "it is one of debug",
		"why":                              "Usage: berth-control why POD",
		"unit --port":                      "unknown flag: --port",
		"unit -- --no-flag":                "unknown flag: --no-flag",
		"manifest --image i -- --port 0":   "probes need to know the port",
		"certs rotate-ca":                  "at least one of the flags",
		"certs rotate-ca --begin --finish": "none of the others can be",
		"join x:1":                         "required flag(s)",
		"token create --ttl -5s":           "good for nothing",
		"manifest --image=":                "--image",
		"kubeconfig --server nope":         "a URL such as",
		"kubeconfig --server http://x":     "a URL such as",
		"why a/b/c":                        "NAMESPACE/NAME",
		"why /x":                           "NAMESPACE/NAME",
		"token create --member --print-join-command": "none of the others can be",
	} {
		err := refusal(t, strings.Fields(args)...)
		if exitCode(err) != commandline.ExitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: exit code %d, %v", args, exitCode(err), err)
		}
	}
}

func TestExitCode(t *testing.T) {
	for err, want := range map[error]int{
		fmt.Errorf("get pod: %w", apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "x")): commandline.ExitNotFound,
		fmt.Errorf("remove member: %w", rpctypes.ErrMemberNotFound):                                   commandline.ExitNotFound,
		fmt.Errorf("x"): commandline.ExitFailure,
	} {
		if got := exitCode(err); got != want {
			t.Errorf("%v: %d", err, got)
		}
	}
}
