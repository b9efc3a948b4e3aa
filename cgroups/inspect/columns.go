package inspect

import (
	_ "embed"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/berth-node/berth/cgroups"
)

//go:embed columns.yaml
var columnData []byte

// Column is one figure of a group, as data: see columns.yaml for the language of the values.
type Column struct {
	Title string `json:"title"`
	Short string `json:"short,omitempty"` // title where there is little room
	Unit  string `json:"unit"`
	Value string `json:"value,omitempty"`
	V1    string `json:"v1,omitempty"`
	V2    string `json:"v2,omitempty"`
	Help  string `json:"help,omitempty"`
}

// Columns are the known ones and the presets made of them.
type Columns struct {
	Columns map[string]Column   `json:"columns"`
	Presets map[string][]string `json:"presets"`
}

// loadColumns reads the built-in columns and, over them, those of extra files of the same format.
func loadColumns(extra ...[]byte) (*Columns, error) {
	out := &Columns{Columns: map[string]Column{}, Presets: map[string][]string{}}
	for _, data := range append([][]byte{columnData}, extra...) {
		var c Columns
		if err := yaml.UnmarshalStrict(data, &c); err != nil {
			return nil, fmt.Errorf("read columns: %w", err)
		}
		maps.Copy(out.Columns, c.Columns)
		maps.Copy(out.Presets, c.Presets)
	}
	for name, c := range out.Columns {
		if err := c.check(); err != nil {
			return nil, fmt.Errorf("column %s: %w", name, err)
		}
	}
	for name, p := range out.Presets {
		if _, err := out.list(p); err != nil {
			return nil, fmt.Errorf("preset %s: %w", name, err)
		}
	}
	return out, nil
}

func (c Column) check() error {
	if !slices.Contains([]string{"count", "bytes", "ns", "us", "percent", "cores", "text"}, c.Unit) {
		return fmt.Errorf("unit %q is not known", c.Unit)
	}
	if name, ok := strings.CutPrefix(c.Value, "="); ok && computed(name) == nil {
		return fmt.Errorf("there is no computed figure %q", name)
	}
	if c.Value == "" && c.V1 == "" && c.V2 == "" {
		return fmt.Errorf("it has no value")
	}
	return nil
}

// list resolves names; one that is not known and looks like a file is a column of its own: "memory.stat:anon=bytes".
func (c *Columns) list(names []string) ([]Column, error) {
	var out []Column
	for _, n := range names {
		col, ok := c.Columns[n]
		if !ok {
			expr, unit, typed := strings.Cut(n, "=")
			if !typed {
				unit = "text"
			}
			col = Column{Title: strings.ToUpper(expr), Unit: unit, Value: expr}
			if !strings.Contains(expr, ".") {
				return nil, fmt.Errorf("there is no column %q; see --columns help", n)
			}
			if err := col.check(); err != nil {
				return nil, fmt.Errorf("column %q: %w", n, err)
			}
		}
		out = append(out, col)
	}
	return out, nil
}

// cell is the column's text for a node, "-" where there is nothing to tell.
func (c Column) cell(n *Node) string {
	expr := c.Value
	if expr == "" {
		expr = c.V1
		if n.snap.Machine.Mode == cgroups.Unified {
			expr = c.V2
		}
	}
	if expr == "" {
		return "-"
	}
	if name, ok := strings.CutPrefix(expr, "="); ok {
		v, ok := computed(name)(n)
		if !ok {
			return "-"
		}
		return format(v, c.Unit)
	}
	text := n.files.value(expr)
	if text == "" {
		return "-"
	}
	if c.Unit == "text" {
		return text
	}
	if text == "max" {
		return "max"
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return text
	}
	return format(v, c.Unit)
}

// value evaluates file, file:key and file#n.
func (g Group) value(expr string) string {
	if file, key, ok := strings.Cut(expr, ":"); ok {
		return lookup(g.file(file), key)
	}
	if file, n, ok := strings.Cut(expr, "#"); ok {
		i, err := strconv.Atoi(n)
		words := strings.Fields(g.file(file))
		if err != nil || i < 0 || i >= len(words) {
			return ""
		}
		return words[i]
	}
	return g.file(expr)
}

// lookup finds "key value" and, for "line.key", "line key=value".
func lookup(text, key string) string {
	first, second, nested := strings.Cut(key, ".")
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		if words[0] == key {
			return words[1]
		}
		if !nested || words[0] != first {
			continue
		}
		for _, w := range words[1:] {
			if v, ok := strings.CutPrefix(w, second+"="); ok {
				return v
			}
		}
	}
	return ""
}

type figure func(n *Node) (float64, bool)

// computed are the figures that are not one file's.
func computed(name string) figure {
	plain := func(get func(*cgroups.Usage) uint64) figure {
		return func(n *Node) (float64, bool) {
			v := get(&n.Usage)
			if v == cgroups.NoLimit {
				return math.Inf(1), true
			}
			return float64(v), true
		}
	}
	switch name {
	case "cpu":
		return plain(func(u *cgroups.Usage) uint64 { return u.CPU.UsageNs })
	case "user":
		return plain(func(u *cgroups.Usage) uint64 { return u.CPU.UserNs })
	case "system":
		return plain(func(u *cgroups.Usage) uint64 { return u.CPU.SystemNs })
	case "throttledtime":
		return plain(func(u *cgroups.Usage) uint64 { return u.CPU.ThrottledNs })
	case "memory":
		return plain(func(u *cgroups.Usage) uint64 { return u.Memory.Usage })
	case "workingset":
		return plain(func(u *cgroups.Usage) uint64 { return u.Memory.WorkingSet })
	case "available":
		return plain(func(u *cgroups.Usage) uint64 { return u.Memory.Available })
	case "rss":
		return plain(func(u *cgroups.Usage) uint64 { return u.Memory.RSS })
	case "cache":
		return plain(func(u *cgroups.Usage) uint64 { return u.Memory.Cache })
	case "majfaults":
		return plain(func(u *cgroups.Usage) uint64 { return u.Memory.MajorFaults })
	case "swap":
		return plain(func(u *cgroups.Usage) uint64 { return u.Memory.Swap })
	case "pids":
		return plain(func(u *cgroups.Usage) uint64 { return u.Pids.Current })
	case "read":
		return plain(func(u *cgroups.Usage) uint64 { return u.IO.ReadBytes })
	case "write":
		return plain(func(u *cgroups.Usage) uint64 { return u.IO.WriteBytes })
	case "reads":
		return plain(func(u *cgroups.Usage) uint64 { return u.IO.ReadOps })
	case "writes":
		return plain(func(u *cgroups.Usage) uint64 { return u.IO.WriteOps })
	case "oom":
		return plain(func(u *cgroups.Usage) uint64 { return u.Memory.OOMKills })
	case "procs":
		return func(n *Node) (float64, bool) { return float64(len(n.files.Pids)), true }
	case "quota":
		return func(n *Node) (float64, bool) { return n.quota() }
	case "throttled":
		return func(n *Node) (float64, bool) { return n.throttled() }
	}
	return nil
}

// quota is the CPU limit in cores; false without one.
func (n *Node) quota() (float64, bool) {
	c := n.Usage.CPU
	if c.QuotaUs == cgroups.NoLimit || c.PeriodUs == 0 {
		return 0, false
	}
	return float64(c.QuotaUs) / float64(c.PeriodUs), true
}

// throttled is the percentage of periods, of those in which the group ran, in which it was stopped.
func (n *Node) throttled() (float64, bool) {
	c := n.Usage.CPU
	if c.Periods == 0 {
		return 0, false
	}
	return 100 * float64(c.ThrottledPeriods) / float64(c.Periods), true
}

func format(v float64, unit string) string {
	if math.IsInf(v, 1) || unit == "bytes" && v >= math.MaxInt64-(1<<17) {
		return "max"
	}
	switch unit {
	case "bytes":
		return bytesText(v)
	case "ns":
		return durationText(time.Duration(v))
	case "us":
		return durationText(time.Duration(v) * time.Microsecond)
	case "percent":
		return strconv.FormatFloat(v, 'f', 1, 64) + "%"
	case "cores":
		return strconv.FormatFloat(v, 'g', 4, 64)
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

func bytesText(v float64) string {
	for _, u := range []string{"", "Ki", "Mi", "Gi", "Ti"} {
		if v < 1024 || u == "Ti" {
			if u == "" || v >= 100 || v == math.Trunc(v) {
				return strconv.FormatFloat(v, 'f', 0, 64) + u
			}
			return strconv.FormatFloat(v, 'f', 1, 64) + u
		}
		v /= 1024
	}
	return ""
}

func durationText(d time.Duration) string {
	switch {
	case d == 0:
		return "0"
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second:
		return d.Round(100 * time.Microsecond).String()
	case d < time.Minute:
		return d.Round(10 * time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	}
	return d.Round(time.Minute).String()
}

// columns picks the columns: those named, those of the preset, or the default ones.
func (a *app) columns(preset, columns, file string) ([]Column, *Columns, error) {
	var extra [][]byte
	if file != "" {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, fmt.Errorf("read columns: %w", err)
		}
		extra = append(extra, data)
	}
	all, err := loadColumns(extra...)
	if err != nil || columns == "help" {
		return nil, all, err
	}
	if preset == "" {
		preset = "default"
		if a.output == "wide" {
			preset = "wide"
		}
	}
	names, ok := all.Presets[preset]
	if !ok {
		return nil, nil, usagef("there is no preset %q", preset)
	}
	if columns != "" {
		names = strings.Split(columns, ",")
	}
	cols, err := all.list(names)
	if err != nil {
		err = usageError{err}
	}
	return cols, all, err
}

func printHelp(w io.Writer, all *Columns) error {
	rows := [][]string{{"COLUMN", "TITLE", "UNIT", "MEANING"}}
	for _, n := range sortedKeys(all.Columns) {
		c := all.Columns[n]
		rows = append(rows, []string{n, c.Title, c.Unit, c.Help})
	}
	if err := printTable(w, rows); err != nil {
		return err
	}
	rows = [][]string{{"", ""}, {"PRESET", "COLUMNS"}}
	for _, n := range sortedKeys(all.Presets) {
		rows = append(rows, []string{n, strings.Join(all.Presets[n], ",")})
	}
	return printTable(w, rows)
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
