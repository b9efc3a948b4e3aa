// Package cli has the commands that show and change the images of a node. They talk to the agent that has the runtime.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/berth-node/berth/cri/imageapi"
	"github.com/berth-node/berth/internal/commandline"
)

// Error is an answer of the agent that is a failure.
type Error struct {
	Status  int
	Message string
}

func (e *Error) Error() string { return e.Message }

// NotFound says whether the image is not there.
func (e *Error) NotFound() bool { return e.Status == http.StatusNotFound }

// Commands returns the commands. client returns one that reaches the agent whatever the host, once flags have been
// read. Names of images are printed through what visible makes of a writer: who has made an archive has chosen them.
func Commands(client func() *http.Client, visible func(io.Writer) io.Writer) []*cobra.Command {
	c := &commands{client: client, visible: visible}
	list := c.list()
	images := &cobra.Command{
		Use: "images", Aliases: []string{"image"}, Short: "List, pull, import and remove images",
		Example: "  berth images\n  berth images pull docker.io/library/nginx:1.29\n  berth images import nginx.tar",
		Args:    cobra.NoArgs, RunE: list.RunE,
	}
	images.Flags().AddFlagSet(list.Flags())
	images.AddCommand(list, c.pull(), c.importArchive(), c.rm())
	return []*cobra.Command{images}
}

type commands struct {
	client  func() *http.Client
	visible func(io.Writer) io.Writer
}

// do sends a request to the agent and turns failures into an [Error].
func (c *commands) do(ctx context.Context, method, path string, q url.Values, body io.Reader) (*http.Response, error) {
	u := url.URL{Scheme: "http", Host: "berth", Path: "/images/" + path, RawQuery: q.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, err
	}
	resp, err := c.client().Do(req)
	if err != nil {
		if ue, ok := errors.AsType[*url.Error](err); ok { // the URL tells nothing to people
			err = ue.Err
		}
		return nil, err
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	msg := strings.TrimSpace(string(b))
	if msg == "" {
		msg = resp.Status
	}
	return nil, &Error{Status: resp.StatusCode, Message: msg}
}

func (c *commands) all(ctx context.Context) ([]imageapi.Image, error) {
	resp, err := c.do(ctx, http.MethodGet, "", nil, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var images []imageapi.Image
	if err := json.NewDecoder(resp.Body).Decode(&images); err != nil {
		return nil, fmt.Errorf("decode answer: %w", err)
	}
	return images, nil
}

func (c *commands) list() *cobra.Command {
	var as commandline.Output
	var digests, quiet bool
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the images", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			images, err := c.all(cmd.Context())
			if err != nil {
				return err
			}
			out := c.visible(cmd.OutOrStdout())
			if quiet && !as.Machines() {
				for _, i := range images {
					if _, err := fmt.Fprintln(out, i.ID); err != nil {
						return err
					}
				}
				return nil
			}
			return as.Print(out, shownImages(images), func(w io.Writer) error { return table(w, images, digests, time.Now()) })
		},
	}
	f := cmd.Flags()
	as.AddFlag(cmd)
	f.BoolVar(&digests, "digests", false, "show the digests of manifests")
	f.BoolVarP(&quiet, "quiet", "q", false, "print only IDs")
	return cmd
}

// shown are images as programs have them.
type shown struct {
	Images []shownImage `json:"images"`
}

type shownImage struct {
	ID        string     `json:"id"`
	Tags      []string   `json:"tags"`
	Digests   []string   `json:"digests"`
	SizeBytes int64      `json:"sizeBytes"`
	Pinned    bool       `json:"pinned"`
	PulledAt  *time.Time `json:"pulledAt"` // null: the runtime does not tell
}

func shownImages(all []imageapi.Image) shown {
	var out shown
	for _, i := range all {
		one := shownImage{ID: i.ID, Tags: i.Tags, Digests: i.Digests, SizeBytes: i.Size, Pinned: i.Pinned}
		if !i.PulledAt.IsZero() {
			one.PulledAt = &i.PulledAt
		}
		out.Images = append(out.Images, one)
	}
	return out
}

// table prints one line for each name of each image.
func table(out io.Writer, images []imageapi.Image, digests bool, now time.Time) error {
	w := tabwriter.NewWriter(out, 6, 4, 3, ' ', 0)
	head := "IMAGE\tTAG\tIMAGE ID\tSIZE\tPULLED"
	if digests {
		head = "IMAGE\tTAG\tDIGEST\tIMAGE ID\tSIZE\tPULLED"
	}
	fmt.Fprintln(w, head)
	var rows []string
	for _, i := range images {
		tags := i.Tags
		if len(tags) == 0 {
			tags = []string{"<none>:<none>"}
			if len(i.Digests) > 0 {
				repo, _, _ := strings.Cut(i.Digests[0], "@")
				tags = []string{repo + ":<none>"}
			}
		}
		for _, t := range tags {
			repo, tag := split(t)
			cells := []string{repo, tag, short(i.ID), units.HumanSize(float64(i.Size)), pulled(i, now)}
			if digests {
				cells = slices.Insert(cells, 2, digestOf(i, repo))
			}
			rows = append(rows, strings.Join(cells, "\t"))
		}
	}
	slices.Sort(rows)
	for _, r := range rows {
		fmt.Fprintln(w, commandline.VisibleText(strings.ReplaceAll(r, "\n", "^J"))) // before columns are aligned
	}
	return w.Flush()
}

// pulled is when an image came. Runtimes behind a socket do not tell.
func pulled(i imageapi.Image, now time.Time) string {
	if i.PulledAt.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(now.Sub(i.PulledAt)) + " ago"
}

// split takes a name apart at its tag: the colon of a registry's port comes before a slash.
func split(name string) (repo, tag string) {
	i := strings.LastIndexByte(name, ':')
	if i < 0 || strings.Contains(name[i:], "/") {
		return name, "<none>"
	}
	return name[:i], name[i+1:]
}

func digestOf(i imageapi.Image, repo string) string {
	for _, d := range i.Digests {
		if r, digest, _ := strings.Cut(d, "@"); r == repo {
			return short(digest)
		}
	}
	return "<none>"
}

func short(digest string) string {
	hex := strings.TrimPrefix(digest, "sha256:")
	return hex[:min(len(hex), 13)]
}

func (c *commands) pull() *cobra.Command {
	return &cobra.Command{
		Use: "pull IMAGE", Short: "Pull an image from its registry", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			resp, err := c.do(cmd.Context(), http.MethodPost, "pull", url.Values{"ref": {args[0]}}, nil)
			if err != nil {
				return err
			}
			return c.report(cmd, resp, "pulled")
		},
	}
}

func (c *commands) importArchive() *cobra.Command {
	return &cobra.Command{
		Use: "import FILE", Short: "Import the images of an archive",
		Long: "Import the images of an archive: what 'docker save' writes, or an OCI layout in a tar file, compressed or not. FILE may be - for standard input.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in := cmd.InOrStdin()
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return fmt.Errorf("import image: %w", err)
				}
				defer f.Close()
				in = f
			}
			resp, err := c.do(cmd.Context(), http.MethodPost, "import", nil, in)
			if err != nil {
				return err
			}
			return c.report(cmd, resp, "imported")
		},
	}
}

func (c *commands) rm() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "rm IMAGE...", Aliases: []string{"remove"}, Short: "Remove images, by name or ID", Args: cobra.MinimumNArgs(1),
		Long: "Remove images, by name or ID, with all their names. One that a container has is refused, also when the container has ended: " +
			"the next one of its pod needs it.",
		ValidArgsFunction: c.names,
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, ref := range args {
				q := url.Values{"ref": {ref}}
				if force {
					q.Set("force", "true")
				}
				resp, err := c.do(cmd.Context(), http.MethodDelete, "", q, nil)
				if err != nil {
					return err
				}
				resp.Body.Close()
				fmt.Fprintln(c.visible(cmd.OutOrStdout()), "removed", ref)
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "remove images that are in use too")
	return cmd
}

func (c *commands) names(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	images, err := c.all(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, i := range images {
		names = append(names, i.Tags...)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// report shows the progress that the answer tells of and ends with the images' names.
func (c *commands) report(cmd *cobra.Command, resp *http.Response, done string) error {
	defer resp.Body.Close()
	p := newProgress(cmd.ErrOrStderr(), c.visible)
	defer p.end()
	for dec := json.NewDecoder(resp.Body); ; {
		var line imageapi.Line
		switch err := dec.Decode(&line); {
		case errors.Is(err, io.EOF):
			return errors.New("the agent has ended the connection")
		case err != nil:
			return fmt.Errorf("read answer: %w", err)
		case line.Progress != nil:
			p.show(*line.Progress)
		case line.Error != "":
			return errors.New(line.Error)
		default:
			p.end()
			for _, i := range line.Images {
				fmt.Fprintf(c.visible(cmd.OutOrStdout()), "%s %s (%s, %s)\n", done, strings.Join(names(i), " "), short(i.ID), units.HumanSize(float64(i.Size)))
			}
			return nil
		}
	}
}

func names(i imageapi.Image) []string {
	switch {
	case len(i.Tags) > 0:
		return i.Tags
	case len(i.Digests) > 0:
		return i.Digests
	default:
		return []string{i.ID}
	}
}
