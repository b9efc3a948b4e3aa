package openapi

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/applyconfigurations"
	merge "sigs.k8s.io/structured-merge-diff/v6/schema"

	"github.com/berth-node/berth/control/apiserver/scheme"
)

// TestMerges holds the table to client-go's schema. With BERTH_UPDATE_DATA=1 it writes it.
func TestMerges(t *testing.T) {
	external, err := scheme.External()
	if err != nil {
		t.Fatal(err)
	}
	// The schema is reached by a value of it.
	any := &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}}
	v, err := applyconfigurations.NewTypeConverter(external).ObjectToTyped(any)
	if err != nil {
		t.Fatal(err)
	}
	types := slices.Clone(v.Schema().Types)
	slices.SortFunc(types, func(a, b merge.TypeDef) int { return strings.Compare(a.Name, b.Name) })
	var b strings.Builder
	for _, d := range types {
		if d.Map != nil {
			b.WriteString(typeLines(t, d.Name, d.Map))
		}
	}
	if b.String() == mergesText {
		return
	}
	if os.Getenv("BERTH_UPDATE_DATA") == "" {
		t.Fatal("merges.txt is not what client-go says; run the test with BERTH_UPDATE_DATA=1")
	}
	if err := os.WriteFile("merges.txt", []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// typeLines are the lines of a type; none, if there is nothing to be said of it.
func typeLines(t *testing.T, name string, m *merge.Map) string {
	t.Helper()
	head, lines := name, ""
	if m.ElementRelationship == merge.Atomic {
		head += " " + wordAtomic
	}
	for _, f := range m.Fields {
		words := fieldWords(t, f)
		if len(words) > 0 {
			lines += "\t" + f.Name + " " + strings.Join(words, " ") + "\n"
		}
	}
	if head == name && lines == "" {
		return ""
	}
	return head + "\n" + lines
}

func fieldWords(t *testing.T, f merge.StructField) (words []string) {
	t.Helper()
	atom := f.Type.Inlined
	if r := f.Type.ElementRelationship; r != nil && *r == merge.Atomic || atom.Map != nil && atom.Map.ElementRelationship == merge.Atomic {
		words = append(words, wordAtomic)
	}
	switch {
	case atom.List == nil:
	case atom.List.ElementRelationship == merge.Atomic:
		words = append(words, wordList+"=atomic")
	case len(atom.List.Keys) > 0:
		words = append(words, wordList+"=map", wordKeys+"="+strings.Join(atom.List.Keys, ","))
	default:
		words = append(words, wordList+"=set")
	}
	if f.Default == nil {
		return words
	}
	text, err := json.Marshal(inJSON(f.Default))
	if err != nil || strings.ContainsAny(string(text), " \t\n") {
		t.Fatalf("the default of %s: %q, %v", f.Name, fmt.Sprint(f.Default), err)
	}
	return append(words, wordDefault+"="+string(text))
}

// inJSON has maps of YAML be such as JSON knows.
func inJSON(value any) any {
	m, ok := value.(map[any]any)
	if !ok {
		return value
	}
	out := map[string]any{}
	for k, v := range m {
		out[fmt.Sprint(k)] = inJSON(v)
	}
	return out
}
