package history

import (
	"fmt"
	"slices"
	"testing"

	"github.com/anishathalye/porcupine"
	"k8s.io/apimachinery/pkg/watch"
)

// objectModel is the model of one object: it is not there, or holds a value.
func objectModel() porcupine.Model {
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{""} },
		Step: func(state, input, output any) []any {
			is, op, out := state.(string), input.(operation), output.(outcome)
			var after any
			may := false // whether it would be done in this state
			switch op.verb {
			case "get":
				if out.ok && is == out.value || !out.ok && is == "" {
					return []any{is}
				}
				return nil
			case "create":
				may, after = is == "", op.value
			case "update":
				may, after = is == op.old, op.value
			case "delete":
				may, after = is != "", ""
			}
			switch {
			case out.lost && may:
				return []any{is, after}
			case out.lost || may != out.ok:
				if out.lost {
					return []any{is}
				}
				return nil
			case out.ok:
				return []any{after}
			}
			return []any{is}
		},
		Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
			by := map[string][]porcupine.Operation{}
			for _, o := range all {
				key := o.Input.(operation).key
				by[key] = append(by[key], o)
			}
			var out [][]porcupine.Operation
			for _, o := range by {
				out = append(out, o)
			}
			return out
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v: %+v", input, output) },
	}
	return model.ToModel()
}

// check asks of the history of each object whether one order of its operations explains all answers, and of the watch
// whether it has heard of each write once.
func (h *History) check(t *testing.T) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if got := porcupine.CheckOperationsTimeout(objectModel(), h.operations, h.limits.Patience); got != porcupine.Ok {
		t.Errorf("no order of the operations explains the answers: %s", got)
	}
	told := map[string]bool{}
	before := 0
	for _, v := range h.told {
		if n := h.number(v); n <= before {
			t.Errorf("the watch tells of %s after %d", v, before)
		}
		before, told[v] = h.number(v), true
	}
	for _, v := range h.versions {
		n := h.number(v)
		if !told[v] && !slices.ContainsFunc(h.listed, func(l [2]int) bool { return l[0] < n && n <= l[1] }) {
			t.Errorf("the watch has not heard of the write of version %s", v)
		}
	}
	if len(h.odd) > 0 {
		t.Errorf("versions are no numbers: %q", h.odd)
	}
	for name, changes := range h.watched {
		there := false
		for _, c := range changes {
			if c.kind == watch.Bookmark { // a list has told of it
				there = c.version != ""
				continue
			}
			if (c.kind == watch.Added) == there {
				t.Errorf("%s: the watch tells of %+v, of an object that is there: %t", name, c, there)
			}
			there = c.kind != watch.Deleted
		}
	}
}
