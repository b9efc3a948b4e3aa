package inspect

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
)

// screen is the terminal's view.
type screen struct {
	ctx           context.Context
	m             *monitor
	o             topOptions
	rows          []Row
	width, height int
	first         int // of the rows that are shown
	filter        string
	typing        bool // of the filter
	help          bool
	plain         bool // without colours, as NO_COLOR asks for
	err           error
}

type looked struct{ err error }

func runScreen(ctx context.Context, m *monitor, o topOptions) error {
	s := &screen{ctx: ctx, m: m, o: o, width: 80, height: 24, plain: os.Getenv("NO_COLOR") != ""}
	// Signals end the context. If the library heard them too, its handler would wait for a loop that has ended with the
	// context.
	if _, err := tea.NewProgram(s, tea.WithContext(ctx), tea.WithoutSignalHandler()).Run(); err != nil && !errors.Is(err, tea.ErrProgramKilled) && !errors.Is(err, tea.ErrInterrupted) {
		return fmt.Errorf("run terminal view: %w", err)
	}
	return s.err
}

// Init implements tea.Model.
func (s *screen) Init() tea.Cmd { return s.look }

// look measures; bubbletea runs it beside the drawing, and never two at a time since the next is only asked for
// afterwards.
func (s *screen) look() tea.Msg {
	return looked{s.m.look(s.ctx)}
}

// Update implements tea.Model.
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
		if s.key(msg.String(), msg.Text) {
			return s, tea.Quit
		}
	}
	return s, nil
}

// key does what a key is for; true is the end.
func (s *screen) key(k, text string) bool {
	if k == "ctrl+c" {
		return true
	}
	if s.typing {
		s.edit(k, text)
		return false
	}
	page := s.lines()
	switch k {
	case "q":
		return true
	case "esc":
		if !s.help && s.filter == "" {
			return true
		}
		s.help, s.filter = false, ""
	case "?", "h":
		s.help = !s.help
	case "/":
		s.typing, s.help = true, false
	case "space", " ":
		s.o.containers, s.first = !s.o.containers, 0
		s.rows = nil // the next look brings the others; this one may be under way
	case "down", "j":
		s.first++
	case "up", "k":
		s.first--
	case "pgdown":
		s.first += page
	case "pgup":
		s.first -= page
	case "home":
		s.first = 0
	case "end":
		s.first = len(s.rows)
	default:
		for _, by := range sorts() {
			if by[:1] == k {
				s.o.sort = by
				sortRows(s.rows, by)
			}
		}
	}
	return false
}

// edit changes the filter, which is in force as it is typed.
func (s *screen) edit(k, text string) {
	switch k {
	case "enter":
		s.typing = false
	case "esc":
		s.typing, s.filter = false, ""
	case "backspace":
		_, n := utf8.DecodeLastRuneInString(s.filter)
		s.filter = s.filter[:len(s.filter)-n]
	default:
		s.filter += visible(text)
	}
	s.first = 0
}

// View implements tea.Model.
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

// in colours a line.
func (s *screen) in(colour, line string) string {
	if s.plain || colour == "" {
		return line
	}
	return colour + line + plain
}

// lines is how many rows there is room for, beside the title, the empty line and the head of the table.
func (s *screen) lines() int { return max(s.height-4, 1) }

const screenHelp = `keys
  q, esc        quit                       ?  this
  c m t i p n   sort by CPU, memory, throttling, I/O, pressure, name
  space         pods or containers         /  show names with what is typed
  up down pgup pgdown home end             scroll

yellow is what is throttled at all, waits for 5 % of the time or has used 80 %
of its memory; red is 25 %, 25 % and 95 %`

func (s *screen) draw() string {
	var b strings.Builder
	what := "pods"
	if s.o.containers {
		what = "containers"
	}
	rows := make([]Row, 0, len(s.rows))
	for _, r := range s.rows {
		if strings.Contains(r.Name, s.filter) {
			rows = append(rows, r)
		}
	}
	s.first = max(0, min(s.first, len(rows)-s.lines()))
	shown := rows[s.first:min(len(rows), s.first+s.lines())]
	title := fmt.Sprintf("%d-%d of %d %s, by %s  (? help)", min(s.first+1, len(rows)), s.first+len(shown), len(rows), what, s.o.sort)
	if s.typing || s.filter != "" {
		title = fmt.Sprintf("/%s  ", s.filter) + title
	}
	b.WriteString(s.in(bold, cut("berth cgroups top  "+title, s.width)) + "\n\n")
	if s.help {
		for line := range strings.Lines(screenHelp) {
			b.WriteString(cut(strings.TrimSuffix(line, "\n"), s.width) + "\n")
		}
		return b.String()
	}
	for i, line := range s.table(shown) {
		line = cut(line, s.width)
		switch {
		case i == 0:
			line = s.in(bold, line)
		case i <= len(shown):
			line = s.in(shown[i-1].colour(), line)
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// leastName is how much of a name is shown before figures are put together.
const leastName = 20

// table has the figures whole at any width that a terminal has: names are cut, and where little is left for them
// pressure is one figure.
func (s *screen) table(rows []Row) []string {
	table := topTable(rows)
	if widthOf(table)+leastName > s.width {
		for i, r := range table {
			psi := "PSI"
			if i > 0 {
				psi = format(rows[i-1].pressure(), "percent")
			}
			table[i] = append(r[:10:10], psi)
		}
		table[0][3] = "THROTT"
		table[0][8], table[0][9] = "READ", "WRITE"
	}
	left := s.width - widthOf(table)
	if left < 8 {
		left = leastName + 4 // so few columns that figures are cut anyhow
	}
	for _, r := range table {
		r[0] = middle(visible(r[0]), left)
	}
	var out strings.Builder
	_ = align(&out, table, func(b *strings.Builder, column int, cell, pad string) {
		if column == 0 {
			b.WriteString(cell + pad)
		} else {
			b.WriteString(" " + pad + cell)
		}
	})
	return strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
}

// widthOf is what the figures take, with a blank before each.
func widthOf(table [][]string) int {
	n := 0
	for c := 1; c < len(table[0]); c++ {
		w := 0
		for _, r := range table {
			w = max(w, utf8.RuneCountInString(r[c]))
		}
		n += w + 1
	}
	return n
}

func cut(s string, width int) string {
	if r := []rune(s); len(r) > width {
		return string(r[:max(width, 0)])
	}
	return s
}

// middle leaves out the middle of a name: its namespace and its end tell most.
func middle(s string, width int) string {
	r := []rune(s)
	if len(r) <= width {
		return s
	}
	head := (width - 1) / 2
	return string(r[:head]) + "…" + string(r[len(r)-(width-1-head):])
}

// colour highlights what is held back: red when it stands still often, or its memory is nearly used up.
func (r Row) colour() string {
	used := 0.0
	if r.Limit != nil {
		used = pct(r.Memory, *r.Limit)
	}
	switch {
	case r.Throttled >= 25 || r.pressure() >= 25 || used >= 95:
		return red
	case r.Throttled > 0 || r.pressure() >= 5 || used >= 80:
		return yellow
	}
	return ""
}
