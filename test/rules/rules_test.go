// Package rules compares the defaults and rules of control/api with those of Kubernetes: `make rules-peer`.
package rules

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"hash/fnv"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/berth-node/berth/control/api/core"
	"github.com/berth-node/berth/control/api/rules"
)

// peer is the process that knows Kubernetes' own rules.
type peer struct {
	in  io.Writer
	out *bufio.Reader
}

type request struct {
	Group, Version, Kind string
	Part                 string `json:",omitempty"`
	Object               json.RawMessage
	Old                  json.RawMessage `json:",omitempty"`
}

type answer struct {
	Undecodable, Panic string
	Seen, Defaulted    json.RawMessage
	Problems           []struct{ Type, Field, Detail string }
}

func startPeer(t *testing.T) *peer {
	t.Helper()
	path := os.Getenv("BERTH_RULES_PEER")
	if path == "" {
		t.Skip("BERTH_RULES_PEER names no program: make rules-peer builds it")
	}
	cmd := exec.CommandContext(t.Context(), path)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	return &peer{in, bufio.NewReaderSize(out, 1<<20)}
}

func (p *peer) ask(t *testing.T, gvk schema.GroupVersionKind, object, old []byte, part ...string) answer {
	t.Helper()
	text, err := json.Marshal(request{gvk.Group, gvk.Version, gvk.Kind, strings.Join(part, ""), object, old})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.in.Write(append(text, '\n')); err != nil {
		t.Fatal(err)
	}
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var a answer
	if err := json.Unmarshal(line, &a); err != nil {
		t.Fatal(err)
	}
	return a
}

// samples are valid objects of each kind.
func samples(t *testing.T) map[schema.GroupVersionKind][]runtime.Object {
	t.Helper()
	all := map[schema.GroupVersionKind][]runtime.Object{}
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
		for {
			doc, err := r.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("read %s: %v", f, err)
			}
			if len(bytes.TrimSpace(doc)) == 0 {
				continue
			}
			obj, gvk, err := scheme.Codecs.UniversalDeserializer().Decode(doc, nil, nil)
			if err != nil {
				t.Fatalf("decode a document of %s: %v\n%s", f, err, doc)
			}
			all[*gvk] = append(all[*gvk], obj)
		}
	}
	return all
}

// constants are the values that k8s.io/api names, by type.
func constants(t *testing.T) map[string][]string {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/api").Output()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	root := strings.TrimSpace(string(dir))
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Base(path) != "types.go" {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, filepath.Dir(path))
		for _, d := range file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			for _, s := range g.Specs {
				v := s.(*ast.ValueSpec)
				id, ok := v.Type.(*ast.Ident)
				if !ok || len(v.Values) != 1 {
					continue
				}
				if lit, ok := v.Values[0].(*ast.BasicLit); ok && lit.Kind == token.STRING {
					text, _ := strconv.Unquote(lit.Value)
					key := "k8s.io/api/" + rel + "." + id.Name
					all[key] = append(all[key], text)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// words finds the constants of the types below t.
func words(t reflect.Type, byName map[string][]string, into map[reflect.Type][]string, seen map[reflect.Type]bool) {
	if seen[t] {
		return
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Struct:
		for field := range t.Fields() {
			words(field.Type, byName, into, seen)
		}
	case reflect.Pointer, reflect.Slice:
		words(t.Elem(), byName, into, seen)
	case reflect.Map:
		words(t.Key(), byName, into, seen)
		words(t.Elem(), byName, into, seen)
	case reflect.String:
		into[t] = byName[t.PkgPath()+"."+t.Name()]
	}
}

// tally is what came out for a kind.
type tally struct {
	compared, agreed, verdicts, defaults int
	differences                          map[string]int
	example                              map[string]string
}

func (c *tally) note(what, example string) {
	c.differences[what]++
	if _, ok := c.example[what]; !ok {
		c.example[what] = example
	}
}

var brackets = regexp.MustCompile(`\[[^\]]*\]`)

// betterPaths are of fields that Kubernetes names otherwise than they are named.
var betterPaths = map[string]string{
	"volumeMode":             "spec.volumeMode",
	"nodeAffinity":           "spec.nodeAffinity",
	"spec.strategy.strategy": "spec.strategy",
}

var (
	overhead = regexp.MustCompile(`^overhead\.limits\[`)
	// Where ours says which entry of a list it is.
	finer        = regexp.MustCompile(`(accessModes|volumeLifecycleModes)\[\d+\]$`)
	podOverhead  = regexp.MustCompile(`spec\.overhead\.limits\[`)
	claimed      = regexp.MustCompile(`spec\.resources\[`)
	sourceRanges = regexp.MustCompile(`^spec\.LoadBalancerSourceRanges(.*)$`)
)

func TestPeer(t *testing.T) {
	p := startPeer(t)
	rounds := 400
	if n, err := strconv.Atoi(os.Getenv("BERTH_RULES_ROUNDS")); err == nil {
		rounds = n
	}
	only := regexp.MustCompile(os.Getenv("BERTH_RULES_KIND"))
	byName := constants(t)
	all := samples(t)
	kinds := slices.SortedFunc(maps.Keys(all), func(a, b schema.GroupVersionKind) int { return strings.Compare(a.String(), b.String()) })
	for _, gvk := range kinds {
		if !only.MatchString(gvk.String()) {
			continue
		}
		r, ok := rules.For(gvk)
		if !ok {
			t.Errorf("%s: no rules", gvk)
			continue
		}
		c := &comparison{t: t, peer: p, gvk: gvk, rules: r, tally: tally{differences: map[string]int{}, example: map[string]string{}}}
		h := fnv.New64a()
		_, _ = h.Write([]byte(gvk.String() + os.Getenv("BERTH_RULES_SEED")))
		m := &mutator{Rand: rand.New(rand.NewPCG(h.Sum64(), 1)), words: map[reflect.Type][]string{}}
		found := map[string]bool{}
		for _, s := range all[gvk] {
			stringsOf(reflect.ValueOf(s), found)
			words(reflect.TypeOf(s), byName, m.words, map[reflect.Type]bool{})
		}
		m.strings = slices.Sorted(maps.Keys(found))
		for i, s := range all[gvk] {
			c.sample(i, s)
			for range rounds {
				one, two := changed(m, s), changed(m, s)
				c.create(one)
				c.update(one, s)
				c.update(two, one)
			}
		}
		c.report()
		if most := 60; c.agreed*100 < c.compared*35 || c.verdicts*100 < c.compared*most {
			t.Errorf("%s: too little agrees", gvk)
		}
	}
}

// TestPeerParts compares the rules of subresources of pods.
func TestPeerParts(t *testing.T) {
	p := startPeer(t)
	gvk := corev1.SchemeGroupVersion.WithKind("Pod")
	byName := constants(t)
	for _, part := range []struct {
		name   string
		update func(o, old *corev1.Pod) field.ErrorList
	}{
		{"status", core.ValidatePodStatus},
		{"ephemeralcontainers", core.ValidateEphemeralContainers},
		{"resize", core.ValidateResize},
	} {
		r, _ := rules.For(gvk)
		r.ValidateUpdate = func(o, old runtime.Object) field.ErrorList { return part.update(o.(*corev1.Pod), old.(*corev1.Pod)) }
		c := &comparison{t: t, peer: p, gvk: gvk, part: part.name, rules: r, tally: tally{differences: map[string]int{}, example: map[string]string{}}}
		m := &mutator{Rand: rand.New(rand.NewPCG(1, 1)), words: map[reflect.Type][]string{}}
		words(reflect.TypeFor[corev1.Pod](), byName, m.words, map[reflect.Type]bool{})
		for _, s := range samples(t)[gvk] {
			for range 300 {
				n := s.DeepCopyObject().(*corev1.Pod)
				switch part.name {
				case "status":
					m.mutate(reflect.ValueOf(&n.Status).Elem())
				case "ephemeralcontainers":
					m.mutate(reflect.ValueOf(&n.Spec.EphemeralContainers).Elem())
				case "resize":
					m.mutate(reflect.ValueOf(&n.Spec.Containers[m.IntN(len(n.Spec.Containers))].Resources).Elem())
				}
				c.update(n, s)
			}
		}
		c.report()
	}
}

func changed(m *mutator, o runtime.Object) runtime.Object {
	o = o.DeepCopyObject()
	for range m.IntN(3)/2 + 1 {
		m.mutate(reflect.ValueOf(o).Elem())
	}
	return o
}

// comparison is of one kind.
type comparison struct {
	tally

	t     *testing.T
	peer  *peer
	gvk   schema.GroupVersionKind
	part  string
	rules rules.Rules
}

// sample holds the samples to being valid, since what is to be wrong is then known.
func (c *comparison) sample(i int, s runtime.Object) {
	a := c.peer.ask(c.t, c.gvk, c.encode(s), nil)
	if a.Undecodable != "" || len(a.Problems) > 0 || a.Panic != "" {
		c.t.Errorf("%s: sample %d is not valid: %s%s %v", c.gvk.Kind, i, a.Undecodable, a.Panic, a.Problems)
	}
	c.create(s)
	c.update(s, s)
}

func (c *comparison) encode(o runtime.Object) []byte {
	text, err := json.Marshal(o)
	if err != nil {
		c.t.Fatal(err)
	}
	return text
}

// decode takes only what the peer knows too.
func (c *comparison) decode(text []byte) runtime.Object {
	o, err := scheme.Scheme.New(c.gvk)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := json.Unmarshal(text, o); err != nil {
		c.t.Fatal(err)
	}
	return o
}

func (c *comparison) create(o runtime.Object) {
	a := c.peer.ask(c.t, c.gvk, c.encode(o), nil)
	if a.Undecodable != "" || a.Panic != "" || a.Seen == nil {
		return
	}
	o = c.decode(a.Seen)
	c.compare("create", a, o, func() field.ErrorList {
		c.rules.Default(o)
		return c.rules.ValidateCreate(o)
	})
}

func (c *comparison) update(o, old runtime.Object) {
	setVersion(o)
	setVersion(old)
	// Which object is changed, the path of the request says.
	if m, ok := o.(metav1.Object); ok {
		m.SetName(old.(metav1.Object).GetName())
		m.SetNamespace(old.(metav1.Object).GetNamespace())
	}
	b := c.peer.ask(c.t, c.gvk, c.encode(old), nil)
	a := c.peer.ask(c.t, c.gvk, c.encode(o), c.encode(old), c.part)
	if a.Undecodable != "" || a.Panic != "" || a.Seen == nil || b.Seen == nil || len(b.Problems) > 0 {
		return
	}
	o, old = c.decode(a.Seen), c.decode(b.Seen)
	c.compare("update", a, o, func() field.ErrorList {
		c.rules.Default(o)
		c.rules.Default(old)
		return c.rules.ValidateUpdate(o, old)
	})
}

func setVersion(o runtime.Object) {
	if m, ok := o.(metav1.Object); ok && m.GetResourceVersion() == "" {
		m.SetResourceVersion("1")
	}
}

func (c *comparison) compare(op string, a answer, o runtime.Object, ours func() field.ErrorList) {
	c.compared++
	var errs field.ErrorList
	panicked := ""
	func() {
		defer func() {
			if p := recover(); p != nil {
				panicked = fmt.Sprint(p)
				if i := bytes.Index(debug.Stack(), []byte("control/api")); i > 0 {
					panicked += " " + string(debug.Stack()[i:min(i+300, len(debug.Stack()))])
				}
			}
		}()
		errs = ours()
	}()
	if panicked != "" {
		c.note(op+" PANIC "+panicked[:min(len(panicked), 80)], panicked+"\n"+string(a.Seen))
		return
	}
	same := true
	o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	if d := difference("", plain(generic(c.t, a.Defaulted)), generic(c.t, c.encode(o))); d != "" {
		c.note("default "+brackets.ReplaceAllString(d, "[]"), d)
		same = false
	} else {
		c.defaults++
	}
	theirs, mine := map[string]string{}, map[string]string{}
	for _, p := range a.Problems {
		if better, ok := betterPaths[p.Field]; ok {
			p.Field = better
		}
		p.Field = overhead.ReplaceAllString(p.Field, "overhead.podFixed[")
		p.Field = podOverhead.ReplaceAllString(p.Field, "spec.overhead[")
		p.Field = claimed.ReplaceAllString(p.Field, "spec.resources.requests[")
		p.Field = strings.Replace(p.Field, "metadata.taints[", "spec.taints[", 1)
		if p.Field == "spec.templateGeneration" {
			continue // which the strategy counts, that is of the server
		}
		p.Field = sourceRanges.ReplaceAllString(p.Field, "spec.loadBalancerSourceRanges$1")
		theirs[p.Type+" "+p.Field] = p.Detail
	}
	for _, e := range errs {
		mine[string(e.Type)+" "+finer.ReplaceAllString(e.Field, "$1")] = fmt.Sprintf("%v %s", e.BadValue, e.Detail)
	}
	if (len(theirs) == 0) == (len(mine) == 0) {
		c.verdicts++
	}
	for _, k := range slices.Sorted(maps.Keys(theirs)) {
		if _, ok := mine[k]; !ok {
			same = false
			c.note(op+" lacks "+brackets.ReplaceAllString(k, "[]"), theirs[k])
		}
	}
	for _, k := range slices.Sorted(maps.Keys(mine)) {
		if _, ok := theirs[k]; !ok {
			same = false
			c.note(op+" EXTRA "+brackets.ReplaceAllString(k, "[]"), mine[k])
		}
	}
	if same {
		c.agreed++
	}
}

func (c *comparison) report() {
	c.t.Logf("%-60s compared %5d  agreed %5d (%.1f %%)  same verdict %5d  same defaults %5d  differences %d", strings.TrimSuffix(c.gvk.GroupVersion().String()+" "+c.gvk.Kind+"/"+c.part, "/"),
		c.compared, c.agreed, 100*float64(c.agreed)/float64(max(c.compared, 1)), c.verdicts, c.defaults, len(c.differences))
	keys := slices.SortedFunc(maps.Keys(c.differences), func(a, b string) int { return c.differences[b] - c.differences[a] })
	show := 12
	if n, err := strconv.Atoi(os.Getenv("BERTH_RULES_SHOW")); err == nil {
		show = n
	}
	for _, k := range keys[:min(len(keys), show)] {
		e := c.example[k]
		c.t.Logf("    %4d %s (%s)", c.differences[k], k, e[:min(len(e), 400)])
	}
}

func generic(t *testing.T, text []byte) any {
	t.Helper()
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// plain takes away what a strategy of the server counts and its conversions keep in an annotation.
func plain(v any) any {
	meta, _ := v.(map[string]any)["metadata"].(map[string]any)
	annotations, _ := meta["annotations"].(map[string]any)
	delete(annotations, "deprecated.daemonset.template.generation")
	if annotations != nil && len(annotations) == 0 {
		delete(meta, "annotations")
	}
	return v
}

// difference is the first place where two values differ; null is as good as nothing.
func difference(at string, theirs, ours any) string {
	switch a := theirs.(type) {
	case map[string]any:
		b, ok := ours.(map[string]any)
		if !ok {
			return fmt.Sprintf("%s: theirs is an object, ours %T", at, ours)
		}
		keys := map[string]bool{}
		for k := range a {
			keys[k] = true
		}
		for k := range b {
			keys[k] = true
		}
		for _, k := range slices.Sorted(maps.Keys(keys)) {
			if a[k] == nil && b[k] == nil || at == "" && k == "status" && a[k] == nil && len(b[k].(map[string]any)) == 0 {
				continue
			}
			if a[k] == nil || b[k] == nil {
				return fmt.Sprintf("%s.%s: theirs %v, ours %v", at, k, a[k], b[k])
			}
			if d := difference(at+"."+k, a[k], b[k]); d != "" {
				return d
			}
		}
	case []any:
		b, ok := ours.([]any)
		if !ok || len(a) != len(b) {
			return fmt.Sprintf("%s: theirs %v, ours %v", at, theirs, ours)
		}
		for i := range a {
			if d := difference(fmt.Sprintf("%s[%d]", at, i), a[i], b[i]); d != "" {
				return d
			}
		}
	default:
		if theirs != ours {
			return fmt.Sprintf("%s: theirs %v, ours %v", at, theirs, ours)
		}
	}
	return ""
}
