package inspect

import (
	"bytes"
	"encoding/json"
	"testing"
)

// TestIndented: the output is what the library would make of it.
func TestIndented(t *testing.T) {
	for _, v := range []any{
		nil, 1.5, "a",
		[]int{},
		map[string]any{},
		[]any{[]any{}, map[string]any{"a": []int{1, 2}}, nil, true},
		map[string]any{`a "quoted" \`: `{[,:]}\"`, "": []string{"\\", `"`, "\n", "ü<>&"}, "deep": map[string]any{"b": map[string]any{"c": ""}}},
		treeJSON{thisSchema, []groupJSON{{Name: "a", Children: []groupJSON{{Name: "b"}, {Children: []groupJSON{}}}}}},
	} {
		var compact, want bytes.Buffer
		if err := json.NewEncoder(&compact).Encode(v); err != nil {
			t.Fatal(err)
		}
		if err := json.Indent(&want, compact.Bytes(), "", "    "); err != nil {
			t.Fatal(err)
		}
		if got := indented(compact.Bytes()); !bytes.Equal(got, want.Bytes()) {
			t.Errorf("got\n%s\nwant\n%s", got, want.Bytes())
		}
	}
}

// TestParseNames: names are those that a whole pod tells.
func TestParseNames(t *testing.T) {
	const pod = `{"kind":"Pod","metadata":{"name":"web","namespace":"default","uid":"u1","annotations":{"a":"b"}},
"spec":{"nodeName":"node","containers":[{"name":"main","resources":{"limits":{"cpu":"1"}}}]},
"status":{"initContainerStatuses":[{"name":"init","containerID":"berth://1"}],"containerStatuses":[{"name":"main","containerID":"berth://2"}],
"ephemeralContainerStatuses":[{"name":"debug","containerID":"berth://3"}]}}`
	for _, text := range []string{pod, `{"kind":"PodList","items":[` + pod + `,` + pod + `]}`, `{"kind":"PodList","items":[]}`, `{}`} {
		names := [2][]Identity{}
		for i, nameOnly := range []bool{false, true} {
			s := &Snapshot{nameOnly: nameOnly, Names: map[string]Identity{}, Machine: Machine{Node: "node"}}
			pods, err := s.parse([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			s.use(pods, "test")
			for _, p := range s.Pods {
				names[i] = append(names[i], s.Names[string(p.UID)])
			}
		}
		whole, err := json.Marshal(names[0])
		if err != nil {
			t.Fatal(err)
		}
		only, err := json.Marshal(names[1])
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(whole, only) {
			t.Errorf("of %s\n%s\nwant\n%s", text, only, whole)
		}
	}
	if _, err := parseNames([]byte(`{"items":[{"metadata":1}]}`)); err == nil {
		t.Error("no pods are taken for some")
	}
}
