package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/internal/commandline"
)

func (c *commands) runTiming(cmd *cobra.Command, t target, arg string) error {
	cl := c.client()
	p, err := t.find(cmd.Context(), cl, arg)
	if err != nil {
		return err
	}
	trace, err := cl.Timing(cmd.Context(), keyOf(p))
	if err != nil {
		return err
	}
	return printTrace(commandline.Visible(cmd.OutOrStdout()), trace)
}

// printTrace prints the steps as a tree, each with when it began and how long it took, and as a bar on the line of
// time.
func printTrace(w io.Writer, root *pod.Span) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(tw, "STEP\tAT\tTOOK\t%s\n", root.Start.Local().Format("15:04:05.000"))
	total := spanEnd(root)
	var walk func(s *pod.Span, depth int)
	walk = func(s *pod.Span, depth int) {
		name := strings.Join([]string{strings.Repeat("  ", depth) + s.Name, s.Attrs["container"], s.Attrs["image"]}, " ")
		name = strings.TrimRight(name, " ")
		if s.Error != "" {
			name += " (failed: " + s.Error + ")"
		}
		at := s.Start.Sub(root.Start)
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", oneLine(name), ms(at), ms(s.Duration), bar(at, s.Duration, total))
		kids := slices.SortedStableFunc(slices.Values(s.Children),
			func(a, b *pod.Span) int { return cmp.Compare(a.Start.UnixNano(), b.Start.UnixNano()) })
		for _, k := range kids {
			walk(k, depth+1)
		}
	}
	walk(root, 0)
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// spanEnd is how long after its beginning the last step below s ended: one may outlast its parent.
func spanEnd(s *pod.Span) time.Duration {
	end := s.Duration
	for _, k := range s.Children {
		end = max(end, k.Start.Sub(s.Start)+spanEnd(k))
	}
	return end
}

const barWidth = 40

func bar(at, took, total time.Duration) string {
	if total <= 0 || at < 0 {
		return ""
	}
	from := min(int(at*barWidth/total), barWidth-1)
	to := max(from+1, min(int((at+took)*barWidth/total), barWidth))
	return strings.Repeat(" ", from) + strings.Repeat("=", to-from)
}

func ms(d time.Duration) string {
	if d >= 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return fmt.Sprintf("%.2f ms", float64(d.Microseconds())/1000)
}
