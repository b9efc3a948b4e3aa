// Package aliases bounds what a YAML text comes to when its aliases are resolved.
package aliases

import (
	"bytes"
	"fmt"
	"math"

	yamlv3 "go.yaml.in/yaml/v3"
)

// Check refuses a text that would have more than most bytes of JSON with its aliases resolved, before they are: the
// parser counts the values that aliases stand for, and not how long these are, and a hundred thousand times one of a
// megabyte are 100 GB.
func Check(text []byte, most int) error {
	if !bytes.ContainsRune(text, '&') || !bytes.ContainsRune(text, '*') {
		return nil
	}
	var root yamlv3.Node
	if yamlv3.NewDecoder(bytes.NewReader(text)).Decode(&root) != nil {
		return nil // as whoever reads it says
	}
	if n := (resolved{}).size(&root); n > most {
		return TooLarge(n, most)
	}
	return nil
}

// TooLarge is the error of a document that has n bytes, with its aliases resolved.
func TooLarge(n, most int) error {
	return fmt.Errorf("document has %d bytes with its aliases resolved, and at most %d are allowed", n, most)
}

// resolved is how many bytes the values with an anchor come to. One of math.MaxInt32 is too large, or inside of itself,
// which the parser refuses.
type resolved map[*yamlv3.Node]int

// size is about what a value takes in JSON, and what its merged keys would if none was written over.
func (r resolved) size(n *yamlv3.Node) int {
	if n.Kind == yamlv3.AliasNode {
		return r.size(n.Alias)
	}
	if n.Anchor == "" {
		return r.sum(n)
	}
	if have, ok := r[n]; ok {
		return have
	}
	r[n] = math.MaxInt32 // until it is known
	r[n] = r.sum(n)
	return r[n]
}

func (r resolved) sum(n *yamlv3.Node) int {
	all := len(n.Value) + 1
	for _, c := range n.Content {
		all = min(all+r.size(c), math.MaxInt32)
	}
	return all
}
