package main

import (
	"fmt"
	"os"
	"text/tabwriter"
)

// figures are what was measured, in its order.
type figures []row

// row is one figure of each node.
type row struct {
	what, unit string
	values     map[string]float64
}

func (f *figures) record(n node, what, unit string, v float64) {
	for _, r := range *f {
		if r.what == what {
			r.values[n.Name()] = v
			return
		}
	}
	*f = append(*f, row{what, unit, map[string]float64{n.Name(): v}})
}

func (f *figures) print(nodes []node) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer w.Flush()
	for _, n := range nodes {
		fmt.Fprintf(w, "\t%s", n.Name())
	}
	fmt.Fprintln(w, "\tratio\t")
	for _, r := range *f {
		fmt.Fprint(w, r.what)
		for _, n := range nodes {
			fmt.Fprintf(w, "\t%.1f %s", r.values[n.Name()], r.unit)
		}
		fmt.Fprintf(w, "\t%.1f\t\n", r.values[nodes[len(nodes)-1].Name()]/r.values[nodes[0].Name()])
	}
}
