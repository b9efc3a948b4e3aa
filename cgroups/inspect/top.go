package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

type topOptions struct {
	every      time.Duration
	sort       string
	containers bool
	count      int
}

func (a *app) topCommand() *cobra.Command {
	var o topOptions
	cmd := &cobra.Command{
		Use: "top", Short: "Pods by what they use now", Args: cobra.NoArgs,
		Long: "Measures up to ten times a second. In a terminal: ? helps, q quits, c m t i p n sort, space switches between pods and\n" +
			"containers, / filters, arrows and pages scroll. NO_COLOR is obeyed.\n" +
			"When piped it prints a table at each interval, with -o json a line.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.from != "" {
				return usagef("a capture has one instant: top needs the live machine")
			}
			if !slices.Contains(sorts(), o.sort) {
				return usagef("sort %q is not one of %s", o.sort, strings.Join(sorts(), ", "))
			}
			o.every = max(o.every, 100*time.Millisecond)
			if err := errors.Join(a.checkOutput(), a.locate(cmd)); err != nil {
				return err
			}
			m, err := newMonitor(a.live)
			if err != nil {
				return err
			}
			defer m.close()
			if err := a.live.mustHaveGroups(m.h); err != nil {
				return err
			}
			if out, ok := cmd.OutOrStdout().(*os.File); ok && term.IsTerminal(int(out.Fd())) && a.output == "" && o.count == 0 {
				return runScreen(cmd.Context(), m, o)
			}
			if o.count > 0 {
				once()
			}
			m.wants = topFiles(o.containers)
			return a.plainTop(cmd.Context(), cmd.OutOrStdout(), m, o)
		},
	}
	cmd.Flags().DurationVar(&o.every, "interval", time.Second, "time between two measurements, at least 100ms")
	cmd.Flags().StringVar(&o.sort, "sort", "cpu", strings.Join(sorts(), ", "))
	cmd.Flags().BoolVar(&o.containers, "containers", false, "show containers instead of pods")
	cmd.Flags().IntVarP(&o.count, "count", "n", 0, "end after so many tables; 0: never")
	return cmd
}

// topFiles are the files of [Row]: those of the groups that have a line, and of the containers of pods that have one
// what tells how often they were stopped.
func topFiles(containers bool) func(*Node) []string {
	var line, stopped need
	line.addUsage("cpu", "quota", "throttled", "available", "pids", "read", "reads")
	for _, resource := range []string{"cpu", "memory", "io"} {
		line.files[resource+".pressure"] = true
	}
	stopped.addUsage("cpu", "quota", "throttled")
	delete(stopped.files, periodFile)
	ofLine, ofStopped := slices.Collect(maps.Keys(line.files)), slices.Collect(maps.Keys(stopped.files))
	return func(n *Node) []string {
		switch {
		case n.Kind == kindPod && !containers, n.Kind == kindContainer && containers && n.Title != sandboxName:
			return ofLine
		case n.Kind == kindContainer && !containers:
			return ofStopped
		}
		return nil
	}
}

// plainTop prints without a terminal.
func (a *app) plainTop(ctx context.Context, w io.Writer, m *monitor, o topOptions) error {
	tick := time.NewTicker(o.every)
	defer tick.Stop()
	for i := 0; ; i++ {
		if err := m.look(ctx); err != nil {
			return err
		}
		if i > 0 { // the first look has nothing to compare with
			rows := m.rows(o.sort, o.containers)
			if a.machines() {
				v := struct {
					schema
					Time time.Time `json:"time"`
					Rows []Row     `json:"rows"`
				}{thisSchema, time.Now(), list(rows)}
				if err := a.encode(w, v, true); err != nil {
					return err
				}
			} else if err := printRows(w, topTable(rows)); err != nil {
				return err
			}
		}
		if o.count > 0 && i == o.count {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func topTable(rows []Row) [][]string {
	out := [][]string{{"NAME", "CPU", "QUOTA", "THROTTLED", "MEMORY", "LIMIT", "USED", "PIDS", "READ/S", "WRITE/S", "CPU-PSI", "MEM-PSI", "IO-PSI"}}
	for _, r := range rows {
		quota, limit, used := "-", "-", "-"
		if r.Quota != nil {
			quota = format(*r.Quota, "cores")
		}
		if r.Limit != nil {
			limit, used = b(*r.Limit), fmt.Sprintf("%.0f%%", pct(r.Memory, *r.Limit))
		}
		p := func(v float64) string { return format(v, "percent") }
		out = append(out, []string{
			r.Name, fmt.Sprintf("%.2f", r.Cores), quota, p(r.Throttled), b(r.Memory), limit, used, fmt.Sprint(r.Pids),
			bytesText(r.Read), bytesText(r.Write), p(r.CPUPSI), p(r.MemPSI), p(r.IOPSI),
		})
	}
	return out
}
