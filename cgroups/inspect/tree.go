package inspect

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// printTree draws the groups with their columns.
func printTree(w io.Writer, tops []*Node, cols []Column) error {
	rows := [][]string{{"GROUP"}}
	for _, c := range cols {
		rows[0] = append(rows[0], c.Title)
	}
	var add func(n *Node, first, rest string)
	add = func(n *Node, first, rest string) {
		row := []string{first + n.label()}
		for _, c := range cols {
			row = append(row, c.cell(n))
		}
		rows = append(rows, row)
		for i, c := range n.Children {
			if i == len(n.Children)-1 {
				add(c, rest+"└─", rest+"  ")
			} else {
				add(c, rest+"├─", rest+"│ ")
			}
		}
	}
	for _, t := range tops {
		add(t, "", "")
	}
	return printRows(w, rows)
}

// label marks what the name alone does not say.
func (n *Node) label() string {
	switch {
	case n.Kind == kindPod && n.Title == n.UID:
		return n.Title + " (unknown pod)"
	case n.Kind == kindOther:
		return n.Title + " (?)"
	}
	return n.Title
}

// printRows aligns the first column left and figures right.
func printRows(w io.Writer, rows [][]string) error {
	return align(w, rows, func(b *strings.Builder, column int, cell, pad string) {
		if column == 0 {
			b.WriteString(cell + pad)
		} else {
			b.WriteString("  " + pad + cell)
		}
	})
}

// printTable aligns every column left, for text.
func printTable(w io.Writer, rows [][]string) error {
	return align(w, rows, func(b *strings.Builder, _ int, cell, pad string) { b.WriteString(cell + pad + "   ") })
}

// align prints rows whose columns are as wide as their widest cell; put writes one cell with the blanks that it lacks.
func align(w io.Writer, rows [][]string, put func(b *strings.Builder, column int, cell, pad string)) error {
	var width []int
	for _, r := range rows {
		for i := range r {
			r[i] = visible(r[i])
			c := r[i]
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	for _, r := range rows {
		var b strings.Builder
		for i, c := range r {
			put(&b, i, c, strings.Repeat(" ", width[i]-utf8.RuneCountInString(c)))
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(b.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) treeCommand() *cobra.Command {
	var preset, columns, file string
	cmd := &cobra.Command{
		Use: "tree", Short: "The groups of all pods with what they use", Args: cobra.NoArgs,
		Long: "Presets: cpu, memory, io, psi, pids, cpuset, swap. --columns takes names (--columns help lists them) and files of the\n" +
			"group, such as memory.stat:anon=bytes. --columns-file adds columns and presets in the format of the built-in ones.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var cols []Column
			var all *Columns
			if plain := preset+columns+file == ""; !plain || !a.machines() { // what is for programs has no columns
				var err error
				if cols, all, err = a.columns(preset, columns, file); err != nil {
					return err
				}
			}
			if columns == "help" {
				return printHelp(cmd.OutOrStdout(), all)
			}
			if a.need = columnsNeed(cols); a.machines() {
				a.need.addUsage()
				// The figures have no limit of swap.
				delete(a.need.files, "memory.memsw.limit_in_bytes")
				delete(a.need.files, "memory.swap.max")
			}
			s, err := a.snapshot(cmd)
			if err != nil {
				return err
			}
			tops := s.nodes()
			return a.print(cmd, treeOf(tops), func(w io.Writer) error { return printTree(w, tops, cols) })
		},
	}
	cmd.Flags().StringVarP(&preset, "preset", "p", "", "columns by purpose")
	cmd.Flags().StringVar(&columns, "columns", "", "columns by name, with commas between")
	cmd.Flags().StringVar(&file, "columns-file", "", "file with more columns and presets")
	type words = []string
	_ = cmd.RegisterFlagCompletionFunc("preset", func(*cobra.Command, words, string) (words, cobra.ShellCompDirective) {
		return []string{"cpu", "memory", "io", "psi", "pids", "cpuset", "swap", "wide"}, cobra.ShellCompDirectiveNoFileComp
	})
	return cmd
}
