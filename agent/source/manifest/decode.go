package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	yamlv3 "go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/internal/aliases"
	"github.com/berth-node/berth/internal/quantity"
)

const (
	// MaxSize is how many bytes a manifest may have. One that has more is refused unread.
	MaxSize = 10 << 20
	// maxDocument bounds one document, because a parsed YAML tree takes a hundred times the room of its text. It is
	// what an API server takes in one request.
	maxDocument = 3 << 20
	// maxNodes bounds the values of one document, which is what the size of the parsed tree depends on.
	maxNodes = 300_000
	// maxPods bounds the documents of a file, and the items of a list.
	maxPods = 5000
	// maxMessages bounds what is said of one pod.
	maxMessages = 20
	// maxMessage bounds one message: a value of a megabyte helps nobody to find it.
	maxMessage = 400
)

// decoded is one pod or other object of a manifest, or what is wrong with it.
type decoded struct {
	name     string      // as the manifest has it, "" when that cannot be read
	kind     object.Kind // "" when that cannot be read
	pod      *corev1.Pod
	object   object.Object // when it is no pod
	errors   []string
	warnings []string
	at       position
}

// position finds lines in the text a pod came from.
type position struct {
	*document
	path string // of the pod in its document: "items[3]" in a list
	hide bool   // its values are nobody's business
}

// document is one of a file.
type document struct {
	text []byte
	line int // of the text's first line in its file
	tree func() *yamlv3.Node
}

func newDocument(text []byte, line int) position {
	return position{document: &document{
		text: text, line: line,
		tree: sync.OnceValue(func() *yamlv3.Node { return parseTree(text) }),
	}}
}

// decode reads everything in a manifest: YAML or JSON, one or several documents, lists too. It never fails as a whole:
// what cannot be read is a decoded with errors.
func decode(data []byte) []decoded {
	docs, isJSON := splitJSON(data)
	if !isJSON {
		docs = splitYAML(data)
	}
	var all []decoded
	for _, d := range docs {
		if len(all) >= maxPods {
			return append(all, decoded{errors: []string{d.say("",
				fmt.Sprintf("what follows is not read: a manifest may have at most %d pods", maxPods))}, at: d})
		}
		switch err := checkSize(d.text); {
		case err != nil:
			all = append(all, decoded{errors: []string{d.say("", err.Error())}, at: d})
		case isJSON:
			all = append(all, decodeJSON(d.text, nil, d)...)
		default:
			all = append(all, decodeYAML(d)...)
		}
	}
	return all
}

// splitJSON splits a stream of JSON objects. It refuses what is not JSON through and through, which may still be YAML.
func splitJSON(data []byte) ([]position, bool) {
	if !bytes.HasPrefix(bytes.TrimLeft(data, " \t\r\n"), []byte("{")) {
		return nil, false
	}
	var docs []position
	lines, counted := 0, 0
	d := json.NewDecoder(bytes.NewReader(data))
	for d.More() {
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return nil, false
		}
		start := int(d.InputOffset()) - len(raw)
		docs = append(docs, newDocument(raw, 1+bytes.Count(data[counted:start], []byte("\n"))+lines))
		lines, counted = docs[len(docs)-1].line-1, start
	}
	if rest := data[d.InputOffset():]; len(bytes.TrimSpace(rest)) != 0 {
		return nil, false
	}
	return docs, true
}

// splitYAML splits at the document markers, which YAML knows by their place at the start of a line.
func splitYAML(data []byte) []position {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	var docs []position
	start, startLine, line := 0, 1, 0
	for at := 0; at < len(data); {
		line++
		end := len(data)
		if i := bytes.IndexByte(data[at:], '\n'); i >= 0 {
			end = at + i + 1
		}
		l := data[at:end]
		if bytes.HasPrefix(l, []byte("---")) && (len(l) == 3 || strings.IndexByte(" \t\r\n", l[3]) >= 0) {
			docs = append(docs, newDocument(data[start:at], startLine))
			// The marker stays with its document: content may follow on the same line.
			start, startLine = at, line
		}
		at = end
	}
	docs = append(docs, newDocument(data[start:], startLine))
	return dropEmpty(docs)
}

// dropEmpty drops documents of comments and markers only.
func dropEmpty(docs []position) []position {
	var kept []position
	for _, d := range docs {
		for l := range bytes.Lines(d.text) {
			l = bytes.TrimSpace(l)
			l = bytes.TrimSpace(bytes.TrimPrefix(l, []byte("---")))
			if len(l) == 0 || l[0] == '#' || bytes.Equal(l, []byte("...")) {
				continue
			}
			kept = append(kept, d)
			break
		}
	}
	return kept
}

func decodeYAML(d position) []decoded {
	if err := checkSingle(d.text); err != nil {
		return []decoded{{errors: []string{d.say("", err.Error())}, at: d}}
	}
	if err := aliases.Check(d.text, maxResolved); err != nil {
		// Its tree is not looked through for lines.
		return []decoded{{errors: []string{fmt.Sprintf("line %d: %v", d.line, err)}, at: d}}
	}
	var warnings []string
	data, err := yaml.YAMLToJSONStrict(d.text)
	if err != nil {
		// Strictness adds only duplicate keys, and those are no reason to refuse a pod: the last one counts.
		strict := err
		if data, err = yaml.YAMLToJSON(d.text); err != nil {
			return []decoded{{errors: d.yamlErrors(err), at: d}}
		}
		// To strictness a key that overrides a merged one is a duplicate, and to YAML it is what merging is for.
		if !bytes.Contains(d.text, []byte("<<")) {
			warnings = d.yamlErrors(strict)
		}
	}
	return decodeJSON(data, warnings, d)
}

// checkSize refuses what would take too much memory to parse, before it is parsed.
func checkSize(text []byte) error {
	if len(text) > maxDocument {
		return fmt.Errorf("document has %d bytes, and at most %d are allowed", len(text), maxDocument)
	}
	nodes := 0
	for _, c := range text {
		switch c {
		case '\n', ',', ':', '[', '{', '-', '?', '*':
			nodes++
		}
	}
	if nodes > maxNodes {
		return fmt.Errorf("document has too many values (about %d)", nodes)
	}
	return nil
}

// decodeJSON reads the pods of one document that is JSON by now; p is where its text is.
func decodeJSON(data []byte, warnings []string, p position) []decoded {
	if err := checkJSON(data); err != nil {
		return []decoded{{errors: []string{p.say("", err.Error())}, at: p}}
	}
	var head struct {
		metav1.TypeMeta `json:",inline"`
		Items           []json.RawMessage `json:"items"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &head); err != nil {
		if !bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
			return []decoded{{
				errors: []string{p.say("", "a manifest must be a map with apiVersion, kind, metadata and spec")},
				at:     p,
			}}
		}
		var generic any
		_ = kjson.UnmarshalCaseSensitivePreserveInts(data, &generic)
		return []decoded{{errors: p.mismatches(generic, &head), at: p}}
	}
	if kind, ok := listed(head.TypeMeta); ok {
		return decodeItems(head.Items, kind, warnings, p)
	}
	d := decodeOne(data, head.TypeMeta, p)
	d.warnings = append(warnings, d.warnings...)
	return []decoded{d}
}

// listed is the kind of a list's items, "" when each says its own.
func listed(t metav1.TypeMeta) (object.Kind, bool) {
	kind, list := strings.CutSuffix(t.Kind, "List")
	if !list || kind == "" {
		return "", list && t.APIVersion == "v1"
	}
	version, known := versionOf(object.Kind(kind))
	return object.Kind(kind), known && t.APIVersion == version
}

func versionOf(k object.Kind) (string, bool) {
	if k == object.Pod {
		return "v1", true
	}
	_, version := k.Empty()
	return version, k.InManifests()
}

// decodeOne reads a pod or another object.
func decodeOne(data []byte, t metav1.TypeMeta, p position) decoded {
	kind := object.Kind(t.Kind)
	if version, known := versionOf(kind); !known || version != t.APIVersion {
		return decoded{errors: p.kindErrors(t), at: p}
	}
	if kind == object.Pod {
		var pod corev1.Pod
		d := decodeInto(data, p, &pod)
		if len(d.errors) == 0 {
			d.name, d.pod = pod.Name, &pod
		}
		d.kind = kind
		return d
	}
	o, _ := kind.Empty()
	p.hide = kind == object.Secret
	d := decodeInto(data, p, o)
	if len(d.errors) == 0 {
		d.name, d.object = o.GetName(), o
	}
	d.kind = kind
	return d
}

// maxResolved bounds a document in JSON, with its aliases resolved.
const maxResolved = 4 * maxDocument

// checkJSON is checkSize after aliases were resolved.
func checkJSON(data []byte) error {
	if len(data) > maxResolved {
		return aliases.TooLarge(len(data), maxResolved)
	}
	return nil
}

func (p position) kindErrors(t metav1.TypeMeta) []string {
	var errs field.ErrorList
	if t.APIVersion == "" {
		errs = append(errs, field.Required(field.NewPath("apiVersion"), `must be "v1"`))
	}
	if t.Kind == "" {
		errs = append(errs, field.Required(field.NewPath("kind"), `must be "Pod" (or "List" of them)`))
	}
	if version, known := versionOf(object.Kind(t.Kind)); len(errs) == 0 && known {
		errs = append(errs, field.NotSupported(field.NewPath("apiVersion"), t.APIVersion, []string{version}))
	}
	if len(errs) == 0 {
		errs = append(errs, field.Invalid(field.NewPath("kind"), t.APIVersion+" "+t.Kind,
			"not supported: must be Pod, ConfigMap, Secret, "+
				"PersistentVolume, PersistentVolumeClaim or List of v1, ResourceClaim or ResourceClaimTemplate of "+
				"resource.k8s.io/v1, RuntimeClass of "+
				"node.k8s.io/v1, PriorityClass of scheduling.k8s.io/v1, CSIDriver, StorageClass or VolumeAttributesClass of storage.k8s.io/v1, "+
				"VolumeSnapshot, VolumeSnapshotClass or VolumeSnapshotContent of snapshot.storage.k8s.io/v1, or VolumeGroupSnapshot or "+
				"VolumeGroupSnapshotClass of groupsnapshot.storage.k8s.io/v1"))
	}
	return p.sayAll(errs)
}

// decodeItems reads the items of a list. Those of a list of one kind need not say that they are of it.
func decodeItems(items []json.RawMessage, kind object.Kind, warnings []string, p position) []decoded {
	var out []decoded
	for i, raw := range items {
		at := p
		if i == maxPods {
			return append(out, decoded{errors: []string{p.say("items",
				fmt.Sprintf("items after the %dth are not read: a manifest may have no more pods", maxPods))}, at: p})
		}
		at.path = fmt.Sprintf("items[%d]", i)
		if p.path != "" {
			at.path = p.path + "." + at.path
		}
		var head metav1.TypeMeta
		_ = kjson.UnmarshalCaseSensitivePreserveInts(raw, &head)
		if version, ok := versionOf(kind); ok && head.Kind == "" && (head.APIVersion == "" || head.APIVersion == version) {
			head = metav1.TypeMeta{Kind: string(kind), APIVersion: version}
		}
		out = append(out, decodeOne(raw, head, at))
	}
	if len(out) == 0 && len(warnings) > 0 {
		out = append(out, decoded{at: p})
	}
	if len(out) > 0 {
		out[0].warnings = append(warnings, out[0].warnings...)
	}
	return out
}

// decodeInto reads into what is a pointer to the type of the document's kind.
func decodeInto(data []byte, p position, into any) decoded {
	d := decoded{at: p}
	if errs := quantity.CheckJSON(data, into); len(errs) > 0 {
		d.errors, d.name = p.sayAll(errs), nameIn(data)
		return d
	}
	strict, err := kjson.UnmarshalStrict(data, into)
	for _, s := range strict {
		d.warnings = append(d.warnings, p.strict(s))
		if len(d.warnings) == maxMessages {
			d.warnings = append(d.warnings, fmt.Sprintf("and %d more", len(strict)-maxMessages))
			break
		}
	}
	if err == nil {
		d.errors = p.sayAll(checkQuantities(into))
		return d
	}
	var generic any
	if e := kjson.UnmarshalCaseSensitivePreserveInts(data, &generic); e == nil {
		d.errors = p.mismatches(generic, into)
	}
	if len(d.errors) == 0 {
		d.errors = []string{p.say("", err.Error())}
	}
	d.name = nameIn(data)
	return d
}

// nameIn is the name of what cannot be read otherwise, "" when it cannot be told.
func nameIn(data []byte) string {
	var head struct{ Metadata struct{ Name any } }
	_ = json.Unmarshal(data, &head)
	name, _ := head.Metadata.Name.(string)
	return name
}
