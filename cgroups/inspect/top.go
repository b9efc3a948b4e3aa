package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/berth-node/berth/cgroups"
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
		Long: "Measures up to ten times a second. In a terminal: q quits, c m t i p n sort, space switches between pods and containers.\n" +
			"When piped it prints a table at each interval, with -o json a line.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.from != "" {
				return errors.New("a capture has one instant: top needs the live machine")
			}
			if !slices.Contains(sorts(), o.sort) {
				return fmt.Errorf("sort %q is not one of %s", o.sort, strings.Join(sorts(), ", "))
			}
			o.every = max(o.every, 100*time.Millisecond)
			if err := a.locate(cmd); err != nil {
				return err
			}
			if err := a.live.mustHaveGroups(); err != nil {
				return err
			}
			m, err := newMonitor(a.live)
			if err != nil {
				return err
			}
			defer m.close()
			if out, ok := cmd.OutOrStdout().(*os.File); ok && term.IsTerminal(int(out.Fd())) && a.output == "" && o.count == 0 {
				return runScreen(cmd.Context(), m, o)
			}
			return a.plainTop(cmd.Context(), cmd.OutOrStdout(), m, o)
		},
	}
	cmd.Flags().DurationVar(&o.every, "interval", time.Second, "time between two measurements, at least 100ms")
	cmd.Flags().StringVar(&o.sort, "sort", "cpu", strings.Join(sorts(), ", "))
	cmd.Flags().BoolVar(&o.containers, "containers", false, "show containers instead of pods")
	cmd.Flags().IntVarP(&o.count, "count", "n", 0, "end after so many tables; 0: never")
	return cmd
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
			if a.output == "json" {
				if err := json.NewEncoder(w).Encode(map[string]any{"time": time.Now(), "rows": rows}); err != nil {
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
		if r.Quota > 0 {
			quota = format(r.Quota, "cores")
		}
		if r.Limit != cgroups.NoLimit {
			limit, used = b(r.Limit), fmt.Sprintf("%.0f%%", pct(r.Memory, r.Limit))
		}
		p := func(v float64) string { return format(v, "percent") }
		out = append(out, []string{
			r.Name, fmt.Sprintf("%.2f", r.Cores), quota, p(r.Throttled), b(r.Memory), limit, used, fmt.Sprint(r.Pids),
			bytesText(r.Read), bytesText(r.Write), p(r.CPUPSI), p(r.MemPSI), p(r.IOPSI),
		})
	}
	return out
}

// screen is the terminal's view.
type screen struct {
	ctx           context.Context
	m             *monitor
	o             topOptions
	rows          []Row
	width, height int
	err           error
}

type looked struct{ err error }

func runScreen(ctx context.Context, m *monitor, o topOptions) error {
	s := &screen{ctx: ctx, m: m, o: o, width: 80, height: 24}
	// Signals end the context. If the library heard them too, its handler would wait for a loop that has ended with the context.
	if _, err := tea.NewProgram(s, tea.WithContext(ctx), tea.WithoutSignalHandler()).Run(); err != nil && !errors.Is(err, tea.ErrProgramKilled) && !errors.Is(err, tea.ErrInterrupted) {
		return fmt.Errorf("run terminal view: %w", err)
	}
	return s.err
}

func (s *screen) Init() tea.Cmd { return s.look }

// look measures; bubbletea runs it beside the drawing, and never two at a time since the next is only asked for afterwards.
func (s *screen) look() tea.Msg {
	return looked{s.m.look(s.ctx)}
}

func (s *screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case looked:
		if msg.err != nil {
			s.err = msg.err
			return s, tea.Quit
		}
		s.rows = s.m.rows(s.o.sort, s.o.containers)
		return s, tea.Tick(s.o.every, func(time.Time) tea.Msg { return s.look() })
	case tea.WindowSizeMsg:
		s.width, s.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		switch k := msg.String(); k {
		case "q", "ctrl+c", "esc":
			return s, tea.Quit
		case "space", " ":
			s.o.containers = !s.o.containers
			s.rows = nil // the next look brings the others; this one may be under way
		default:
			for _, by := range sorts() {
				if by[:1] == k {
					s.o.sort = by
					sortRows(s.rows, by)
				}
			}
		}
	}
	return s, nil
}

func (s *screen) View() tea.View {
	v := tea.NewView(s.draw())
	v.AltScreen = true
	return v
}

// Colours of the eight every terminal has.
const (
	plain  = "\x1b[0m"
	bold   = "\x1b[1m"
	yellow = "\x1b[33m"
	red    = "\x1b[31m"
)

func (s *screen) draw() string {
	var b, table strings.Builder
	what := "pods"
	if s.o.containers {
		what = "containers"
	}
	fmt.Fprintf(&b, "%sberth cgroups top%s  %d %s, by %s  (q quit, space pods/containers, sort: c m t i p n)\n\n", bold, plain, len(s.rows), what, s.o.sort)
	rows := s.rows[:min(len(s.rows), max(s.height-4, 1))]
	_ = printRows(&table, topTable(rows))
	for i, line := range strings.Split(strings.TrimRight(table.String(), "\n"), "\n") {
		if r := []rune(line); len(r) > s.width {
			line = string(r[:s.width])
		}
		switch {
		case i == 0:
			line = bold + line + plain
		default:
			line = rows[i-1].colour() + line + plain
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// colour highlights what is held back: red when it stands still often, or its memory is nearly used up.
func (r Row) colour() string {
	used := 0.0
	if r.Limit != cgroups.NoLimit {
		used = pct(r.Memory, r.Limit)
	}
	switch {
	case r.Throttled >= 25 || r.pressure() >= 25 || used >= 95:
		return red
	case r.Throttled > 0 || r.pressure() >= 5 || used >= 80:
		return yellow
	}
	return ""
}
