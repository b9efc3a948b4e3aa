// Package check finds out whether this machine can run pods: each kernel feature is really tried, in namespaces and
// directories of its own that are gone afterwards, and a missing one is told with what it costs.
package check

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Status is what became of one probe.
type Status string

const (
	// OK works in full.
	OK Status = "ok"
	// Limited works in part; Found says which part.
	Limited Status = "limited"
	// Missing does not work.
	Missing Status = "missing"
)

// Row is one feature.
type Row struct {
	Name     string `json:"name"`
	Status   Status `json:"status"`
	Found    string `json:"found"`            // what is there, or the kernel's answer
	Cost     string `json:"cost,omitempty"`   // what does not work without it; only when not ok
	Remedy   string `json:"remedy,omitempty"` // what to do about it; only when not ok, and where something can be done
	Required bool   `json:"required"`
}

// Report is every row, in the order they are shown.
type Report struct {
	Machine string `json:"machine"`
	Able    bool   `json:"able"`
	Rows    []Row  `json:"checks"`
}

// OK says whether everything that is required is there, at least in part.
func (r Report) OK() bool {
	for _, row := range r.Rows {
		if row.Required && row.Status == Missing {
			return false
		}
	}
	return true
}

// Print writes the table, then what the gaps cost and the verdict.
func (r Report) Print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	fmt.Fprintln(tw, "CHECK\tSTATUS\tREQUIRED\tFOUND")
	for _, row := range r.Rows {
		required := "no"
		if row.Required {
			required = "yes"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", row.Name, row.Status, required, row.Found)
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	_, err := io.WriteString(w, "\n"+r.gaps()+r.verdict()+"\n")
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func (r Report) gaps() string {
	var b strings.Builder
	for _, row := range r.Rows {
		if row.Cost != "" {
			fmt.Fprintf(&b, "%s (%s): %s\n", row.Name, row.Status, row.Cost)
		}
		if row.Remedy != "" {
			fmt.Fprintf(&b, "    to do: %s\n", row.Remedy)
		}
	}
	if b.Len() > 0 {
		b.WriteString("\n")
	}
	return b.String()
}

func (r Report) verdict() string {
	var missing []string
	for _, row := range r.Rows {
		if row.Required && row.Status == Missing {
			missing = append(missing, row.Name)
		}
	}
	if len(missing) == 0 {
		return "This machine can run pods (" + r.Machine + ")."
	}
	return "This machine cannot run pods (" + r.Machine + "), it lacks: " + strings.Join(missing, ", ") + "."
}
