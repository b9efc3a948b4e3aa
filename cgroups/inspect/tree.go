package inspect

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// printTree draws the groups with their columns, in lines of a terminal's width where there is one: of names as much is
// left out as they are too long, and of figures nothing.
func printTree(w io.Writer, tops []*Node, cols []Column, width int) error {
	rows, lines := [][]string{{"GROUP"}}, []string{""} // lines are those that lead to the names
	for _, c := range cols {
		rows[0] = append(rows[0], c.Title)
	}
	var add func(n *Node, first, rest string)
	add = func(n *Node, first, rest string) {
		row := []string{n.label()}
		for _, c := range cols {
			row = append(row, visible(c.cell(n)))
		}
		rows, lines = append(rows, row), append(lines, first)
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
	gap := fitTree(rows, lines, cols, width)
	for i, r := range rows {
		r[0] = lines[i] + r[0]
	}
	return align(w, rows, func(b *strings.Builder, column int, cell, pad string) {
		if column == 0 {
			b.WriteString(cell + pad)
		} else {
			b.WriteString(gap + pad + cell)
		}
	})
}

// leastGroup is how much of a group's name and of the lines before it is shown at least.
const leastGroup = 14

// fitTree makes rows fit, if they do not, by short titles, and by names without their middle. It returns what is
// between columns.
func fitTree(rows [][]string, lines []string, cols []Column, width int) (gap string) {
	names := 0
	for i, r := range rows {
		names = max(names, utf8.RuneCountInString(lines[i]+visible(r[0])))
	}
	const wide = "  "
	if width == 0 || names+widthOf(rows)+len(cols)*(len(wide)-1) <= width {
		return wide
	}
	for i, c := range cols {
		rows[0][i+1] = cmp.Or(c.Short, c.Title)
	}
	left := max(width-widthOf(rows), leastGroup)
	for i, r := range rows {
		r[0] = brief(visible(r[0]), max(left-utf8.RuneCountInString(lines[i]), 2))
	}
	return " "
}

// brief leaves out of a pod's name its namespace first, which most of them have in common.
func brief(name string, width int) string {
	const without = "…/"
	_, rest, ok := strings.Cut(name, "/")
	if ok && utf8.RuneCountInString(name) > width && width > leastGroup/2 {
		return without + middle(rest, width-utf8.RuneCountInString(without))
	}
	return middle(name, width)
}

// terminalWidth is how wide the terminal is that w writes to, 0 where it is none.
func terminalWidth(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
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
			return a.print(cmd, treeOf(tops), func(w io.Writer) error { return printTree(w, tops, cols, terminalWidth(w)) })
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
