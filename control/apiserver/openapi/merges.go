package openapi

import (
	_ "embed"
	"encoding/json"
	"strings"
)

// mergesText is how lists and maps of the types are merged, and which defaults fields have: what their comments say,
// which a program does not have. client-go has it, as the schema of its apply configurations; to read that takes a
// twelfth of a start. A line is the name of a type, or below it that of a field, and words: atomic, list=TYPE,
// keys=NAME,NAME, default=JSON.
//
//go:embed merges.txt
var mergesText string

// The words of a line.
const (
	wordAtomic  = "atomic"
	wordList    = "list"
	wordKeys    = "keys"
	wordDefault = "default"
)

// merges has the lines of each type.
type merges map[string][]string

// mergedType is how a type's fields are merged.
type mergedType struct {
	atomic bool
	fields map[string]merged
}

// merged is how a field is.
type merged struct {
	value  any // its default
	atomic bool
	list   string // the type of a list
	keys   []any  // by which its items are told apart
}

func readMerges(text string) merges {
	all, name := merges{}, ""
	for line := range strings.Lines(text) {
		if line[0] != '\t' {
			name, _, _ = strings.Cut(strings.TrimSpace(line), " ")
		}
		all[name] = append(all[name], line)
	}
	return all
}

// of is how a type is merged; one that is not in the table has nothing to be said of.
func (m merges) of(name string) mergedType {
	var t mergedType
	for _, line := range m[name] {
		name, words, _ := strings.Cut(strings.TrimSpace(line), " ")
		if line[0] != '\t' {
			t.atomic = words == wordAtomic
			continue
		}
		if t.fields == nil {
			t.fields = map[string]merged{}
		}
		t.fields[name] = readMerged(words)
	}
	return t
}

func readMerged(words string) (f merged) {
	for word := range strings.FieldsSeq(words) {
		switch what, value, _ := strings.Cut(word, "="); what {
		case wordAtomic:
			f.atomic = true
		case wordList:
			f.list = value
		case wordKeys:
			for k := range strings.SplitSeq(value, ",") {
				f.keys = append(f.keys, k)
			}
		case wordDefault:
			_ = json.Unmarshal([]byte(value), &f.value) // the table has what json.Marshal has made
		}
	}
	return f
}
