// Package manifest makes pods that may run, and the objects that they refer to, of the text of a manifest: YAML or
// JSON, one document or several. It decodes, gives each pod the identity of a static pod of this node, sets defaults
// and validates; what it refuses it says with the line that it is about.
package manifest

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
)

// Reader reads the manifests of one node.
type Reader struct {
	Node string // becomes part of each pod's name; in lower case
	// Credentials is the directory of the service's credentials (systemd's $CREDENTIALS_DIRECTORY), which Secrets may
	// take values from.
	Credentials string
}

// Place is where a manifest was found.
type Place struct {
	Origin  desired.Origin
	Exposed error // why what is there may not hold Secrets
}

// Item is one pod that a manifest asks for, ready to run, or another object that it holds.
type Item struct {
	Ref    object.Ref
	Pod    *corev1.Pod
	Object object.Object // when it is no pod
	Hash   string
	Raw    []byte // as the manifest has it, before defaults
	Since  time.Time
}

// Version tells what of an item would have to be told again.
func (i *Item) Version() string {
	if i.Pod != nil {
		return i.Hash + "/" + string(i.Pod.UID)
	}
	return i.Hash
}

// Document is one pod or other object of a manifest, or what is wrong with it.
type Document struct {
	Item     *Item  // nil: nothing that can be used
	Name     string // namespace/name of a pod, with the kind before it when it is none; "" when that cannot be told
	Errors   []string
	Warnings []string
}

// Read reads everything in a manifest. It never fails as a whole: what cannot be read is a Document with errors.
func (r *Reader) Read(data []byte, from Place) []Document {
	var out []Document
	have := map[object.Ref]bool{}
	docs := decode(data)
	for i := range docs {
		d := &docs[i]
		var item *Item
		if len(d.errors) == 0 && (d.pod != nil || d.object != nil) {
			if made, ok := r.item(d, from, time.Now()); ok {
				item = &made
			}
		}
		if item != nil && have[item.Ref] {
			d.errors = append(d.errors, d.at.say("metadata.name", fmt.Sprintf(
				"metadata.name: Duplicate value: %q: an earlier document of this file has it", item.Ref.NamespacedName)))
			item = nil
		}
		if item != nil {
			have[item.Ref] = true
		}
		out = append(out, Document{Item: item, Name: d.key(r.Node), Errors: d.errors, Warnings: d.warnings})
	}
	return out
}

// Again makes an item of its Raw, which was kept from another time. It is false for what is not accepted any more.
func (r *Reader) Again(raw []byte, from Place, since time.Time) (Item, bool) {
	docs := decodeJSON(raw, nil, newDocument(nil, 0))
	if len(docs) != 1 || len(docs[0].errors) > 0 {
		return Item{}, false
	}
	return r.item(&docs[0], from, since)
}
