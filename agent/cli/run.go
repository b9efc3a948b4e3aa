package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/api"
	"github.com/berth-node/berth/agent/api/client"
	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/draft"
	"github.com/berth-node/berth/agent/source/manifest"
	"github.com/berth-node/berth/internal/atomicfile"
	"github.com/berth-node/berth/internal/commandline"
)

// running is what `berth run` was asked for.
type running struct {
	draft.Pod
	replace  bool
	patience time.Duration
}

func (c *commands) run() *cobra.Command {
	r := &running{}
	cmd := &cobra.Command{
		Use: "run IMAGE [-- ARG...]", Short: "Run a pod of an image, and wait until it is ready",
		Long: `Write a manifest, as 'berth init' prints it, into the directory of manifests of the agent, and wait until the pod is ready, or has
ended well. It fails, and says why, when the pod fails, the agent begins to wait before it tries again,
or the time is up; in each case the manifest stays, and with it the pod. It is removed by removing the manifest, which 'berth rm' names.`,
		Example: "  berth run docker.io/library/nginx:1.27 --port 8080:80\n" +
			"  berth run docker.io/library/nginx:1.27 --name web --volume /srv/www:/usr/share/nginx/html:ro --memory 256Mi\n" +
			"  berth run docker.io/library/busybox:1 --name job --restart Never --command -- sh -c 'date; sleep 10'",
		Args:              func(cmd *cobra.Command, args []string) error { return oneBeforeDash(cmd, args, "IMAGE") },
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			r.Image, r.Args = args[0], args[1:]
			if r.Name == "" {
				var err error
				if r.Name, err = draft.NameOf(r.Image); err != nil {
					return commandline.Usage(err)
				}
			}
			if r.patience <= 0 {
				return commandline.Usagef("--timeout %s: must be more than 0", r.patience)
			}
			return r.run(cmd.Context(), c.client(), commandline.Visible(cmd.OutOrStdout()))
		},
	}
	cmd.Flags().StringVar(&r.Name, "name", "", "name of the pod (default that of the image)")
	cmd.Flags().StringVarP(&r.Namespace, "namespace", "n", "default", "namespace")
	cmd.Flags().BoolVar(&r.replace, "replace", false, "take the place of the pod that an earlier run of this name has made")
	cmd.Flags().DurationVar(&r.patience, "timeout", 5*time.Minute, "how long to wait until it is ready")
	r.AddFlags(cmd.Flags())
	complete(cmd, "restart", "Always", "OnFailure", "Never")
	return cmd
}

// wanted is a manifest that is about to be written, as the agent is going to read it.
type wanted struct {
	path string
	text []byte
	key  types.NamespacedName
	hash string
	uid  types.UID
}

func (r *running) run(ctx context.Context, cl *client.Client, out io.Writer) error {
	text, err := r.Manifest()
	if err != nil {
		return commandline.Usage(err)
	}
	at, err := client.FindManifests(ctx, cl)
	if err != nil {
		return err
	}
	w, err := r.read(at, text)
	if err != nil {
		return err
	}
	if err := w.free(ctx, cl, at, r.replace); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.patience, errPatience)
	defer cancel()
	l := &waiting{wanted: w, client: cl, out: out}
	err = l.wait(ctx, func() error {
		if err := w.write(r.replace); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s is written; removing it removes the pod:\n  rm %s\n", w.path, shellWord(w.path))
		fmt.Fprintf(out, "Waiting up to %s until pod %s is ready (Ctrl-C ends the waiting, not the pod).\n", r.patience, w.key)
		return nil
	})
	if errors.Is(err, errPatience) {
		return l.late(r.patience)
	}
	return err
}

// read has the parser of the agent look at the manifest before the agent does.
func (r *running) read(at client.Manifests, text []byte) (*wanted, error) {
	docs := (&manifest.Reader{Node: at.Node}).Read(text, manifest.Place{Origin: desired.File})
	if len(docs) != 1 || docs[0].Item == nil {
		var errs []string
		for _, d := range docs {
			errs = append(errs, d.Errors...)
		}
		return nil, fmt.Errorf("make manifest: it would be refused: %s", strings.Join(errs, "; "))
	}
	name := r.Name + ".yaml"
	if r.Namespace != "default" {
		name = r.Namespace + "." + name
	}
	item := docs[0].Item
	return &wanted{filepath.Join(at.Dir, name), text, item.Ref.NamespacedName, item.Hash, item.Pod.UID}, nil
}

// maxManifest is the most that is read of a manifest that is about to be replaced.
const maxManifest = 1 << 20

// free finds out whether nobody else has the name of the pod, or of the file.
func (w *wanted) free(ctx context.Context, cl *client.Client, at client.Manifests, replace bool) error {
	_, file, err := cl.Pod(ctx, w.key)
	api, failed := errors.AsType[*client.Error](err)
	switch {
	case failed && api.Code == 404:
	case err != nil:
		return err
	case file != "" && file != w.path:
		return fmt.Errorf("pod %s is there already, by %s: change that, or take another --name", w.key, file)
	case !replace:
		return fmt.Errorf("pod %s is there already: --replace puts this one in its place, --name gives this one another name", w.key)
	}
	f, err := os.Open(w.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at the manifest that is there: %w", err)
	}
	defer f.Close()
	if !replace {
		return fmt.Errorf("%s is there already: --replace writes over it, --name gives the pod another name", w.path)
	}
	old, err := io.ReadAll(io.LimitReader(f, maxManifest+1))
	if err != nil {
		return fmt.Errorf("look at the manifest that is there: %w", err)
	}
	docs := (&manifest.Reader{Node: at.Node}).Read(old, manifest.Place{Origin: desired.File})
	if len(old) > maxManifest || len(docs) != 1 || docs[0].Name != w.key.String() {
		return fmt.Errorf("%s has more in it than pod %s, or something else: it is not replaced; take another --name", w.path, w.key)
	}
	return nil
}

func (w *wanted) write(replace bool) error {
	if replace {
		if err := atomicfile.WriteSynced(w.path, w.text, 0o600); err != nil {
			return fmt.Errorf("write manifest: %w", err)
		}
		return nil
	}
	err := createWhole(w.path, w.text)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s has come just now: --replace writes over it", w.path)
	}
	return err
}

// refusal is what the agent has against the file, "" when nothing.
func (w *wanted) refusal(problems []api.Problem) string {
	for _, p := range problems {
		if p.File == w.path && len(p.Errors) > 0 {
			return strings.Join(p.Errors, "; ")
		}
	}
	return ""
}

// shellWord is a text as one word of a shell.
func shellWord(s string) string {
	if bytes.ContainsFunc([]byte(s), func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+:@", r)
	}) {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	return s
}
