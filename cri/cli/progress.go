package cli

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/docker/go-units"
	"golang.org/x/term"

	"github.com/berth-node/berth/cri/imageapi"
)

// redraw is how often the bars are drawn at most; more is not seen.
const redraw = 80 * time.Millisecond

// progress shows layers as bars on a terminal, and as a line for each phase where there is none.
type progress struct {
	out     io.Writer
	visible func(io.Writer) io.Writer // keeps names from steering out
	width   int                       // of the terminal; 0: none
	order   []string
	last    map[string]imageapi.Progress
	drawn   int // lines of the last drawing
	at      time.Time
	now     func() time.Time
}

func newProgress(out io.Writer, visible func(io.Writer) io.Writer) *progress {
	p := &progress{out: out, visible: visible, last: map[string]imageapi.Progress{}, now: time.Now}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.width = 80
		if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 0 {
			p.width = w
		}
	}
	return p
}

// show takes one step of one layer.
func (p *progress) show(s imageapi.Progress) {
	before, known := p.last[s.Layer]
	if !known {
		p.order = append(p.order, s.Layer)
	}
	p.last[s.Layer] = s
	if p.width == 0 {
		if !known || before.Phase != s.Phase {
			fmt.Fprintln(p.visible(p.out), plainLine(s))
		}
		return
	}
	if now := p.now(); now.Sub(p.at) >= redraw || before.Phase != s.Phase {
		p.at = now
		p.draw()
	}
}

func plainLine(s imageapi.Progress) string {
	line := s.Phase
	if s.Layer != "" {
		line = short(s.Layer) + ": " + line
	} else if s.Ref != "" {
		line = s.Ref + ": " + line
	}
	if s.Total > 0 {
		line += " (" + units.HumanSize(float64(s.Total)) + ")"
	}
	return line
}

// draw draws over the last drawing.
func (p *progress) draw() {
	var b strings.Builder
	if p.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", p.drawn)
	}
	p.drawn = 0
	for _, l := range p.order {
		if l == "" && len(p.order) > 1 {
			continue // the layers tell more than the whole
		}
		line := barLine(p.last[l], p.width-1)
		b.WriteString("\x1b[2K")
		fmt.Fprintln(p.visible(&b), line)
		p.drawn++
	}
	_, _ = io.WriteString(p.out, b.String()) // a terminal that has gone
}

// end leaves the last state on the terminal.
func (p *progress) end() {
	if p.width > 0 && len(p.order) > 0 {
		p.draw()
		p.order = nil
	}
}

// barLine is "layer  phase  [=====>    ]  12MB/40MB" in width columns at most.
func barLine(s imageapi.Progress, width int) string {
	head := fmt.Sprintf("%-13s %-11s ", cmp.Or(short(s.Layer), "image"), s.Phase)
	tail := ""
	switch {
	case s.Total > 0:
		tail = fmt.Sprintf(" %8s/%s", units.HumanSize(float64(s.Done)), units.HumanSize(float64(s.Total)))
	case s.Done > 0:
		tail = " " + units.HumanSize(float64(s.Done))
	}
	room := width - len(head) - len(tail) - 2
	line := head + tail
	if n := min(room, 40); n >= 5 && s.Total > 0 {
		full := min(int(int64(n)*s.Done/s.Total), n)
		bar := strings.Repeat("=", full)
		if full < n {
			bar += ">"
			bar += strings.Repeat(" ", n-full-1)
		}
		line = head + "[" + bar + "]" + tail
	}
	return line[:max(0, min(len(line), width))]
}
