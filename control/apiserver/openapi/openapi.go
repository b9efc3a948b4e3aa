// Package openapi is the OpenAPI definitions of the types of k8s.io/api, made of what that module publishes: the types
// with their tags and descriptions, the names of their models, and, for what server-side apply needs, a table of how
// they are merged.
//
// Kubernetes' own definitions are generated code of some 65,000 lines, which are no library's.
package openapi

import (
	"maps"
	"reflect"
	"strings"

	extensions "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	aggregator "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Definitions makes the function that yields the definitions of a scheme's types, and of those of custom resources and
// aggregated servers. The scheme has served versions only.
func Definitions(external *runtime.Scheme) common.GetOpenAPIDefinitions {
	return func(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
		all := LibraryDefinitions(ref)
		m := &maker{all: all, ref: ref, merges: readMerges(mergesText)}
		m.visit(reflect.TypeFor[intstr.IntOrString]())
		for _, t := range external.AllKnownTypes() {
			m.visit(t)
		}
		return all
	}
}

// LibraryDefinitions are those of what the servers of custom resources and of aggregated servers serve themselves.
func LibraryDefinitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	all := extensions.GetOpenAPIDefinitions(ref)
	maps.Copy(all, aggregator.GetOpenAPIDefinitions(ref))
	return all
}

// maker adds definitions of types, and of what they are made of, to a map.
type maker struct {
	all    map[string]common.OpenAPIDefinition
	ref    common.ReferenceCallback
	merges merges
}

type (
	named      interface{ OpenAPIModelName() string }
	described  interface{ SwaggerDoc() map[string]string }
	schemaType interface{ OpenAPISchemaType() []string }
	format     interface{ OpenAPISchemaFormat() string }
	oneOf      interface{ OpenAPIV3OneOfTypes() []string }
)

// nameOf is the name of a type's model; a type without one has its schema where it is used.
func nameOf(t reflect.Type) (string, bool) {
	n, ok := reflect.TypeAssert[named](reflect.New(t))
	if !ok {
		return "", false
	}
	return n.OpenAPIModelName(), true
}

func docOf(t reflect.Type) map[string]string {
	if d, ok := reflect.TypeAssert[described](reflect.New(t)); ok {
		return d.SwaggerDoc()
	}
	return nil
}

func (m *maker) visit(t reflect.Type) {
	name, ok := nameOf(t)
	if !ok {
		return
	}
	if _, done := m.all[name]; done {
		return
	}
	m.all[name] = common.OpenAPIDefinition{} // a type may have itself in it
	d := &definition{maker: m, seen: map[string]bool{}}
	v := reflect.New(t).Interface()
	d.schema.Description = docOf(t)[""]
	if st, ok := v.(schemaType); ok {
		d.schema.Type = st.OpenAPISchemaType()
		if f, ok := v.(format); ok {
			d.schema.Format = f.OpenAPISchemaFormat()
		}
	} else {
		d.schema.Type = spec.StringOrArray{"object"}
		d.schema.Properties = map[string]spec.Schema{}
		how := m.merges.of(name)
		if how.atomic {
			d.schema.AddExtension("x-kubernetes-map-type", "atomic")
		}
		d.fields(t, how.fields)
	}
	m.all[name] = common.OpenAPIDefinition{Schema: d.schema, Dependencies: d.needs}
	if of, ok := v.(oneOf); ok {
		// Version 2 has no word for a value of one type or another.
		d.schema.Type, d.schema.OneOf = nil, common.GenerateOpenAPIV3OneOfSchema(of.OpenAPIV3OneOfTypes())
		m.all[name] = common.EmbedOpenAPIDefinitionIntoV2Extension(common.OpenAPIDefinition{Schema: d.schema}, m.all[name])
	}
}

// definition is one that is being made.
type definition struct {
	maker  *maker
	schema spec.Schema
	needs  []string
	seen   map[string]bool
}

func (d *definition) fields(t reflect.Type, how map[string]merged) {
	doc := docOf(t)
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		if name == "" {
			if f.Anonymous {
				d.fields(f.Type, how)
			}
			continue
		}
		optional := strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")
		if !optional && f.Type.Kind() != reflect.Pointer {
			d.schema.Required = append(d.schema.Required, name)
		}
		p := d.property(f.Type)
		p.Description = doc[name]
		mark(&p, f, how)
		d.schema.Properties[name] = p
	}
}

// mark adds to a property how it is merged and its default.
func mark(p *spec.Schema, f reflect.StructField, how map[string]merged) {
	if s := f.Tag.Get("patchStrategy"); s != "" {
		p.AddExtension("x-kubernetes-patch-strategy", s)
	}
	if k := f.Tag.Get("patchMergeKey"); k != "" {
		p.AddExtension("x-kubernetes-patch-merge-key", k)
	}
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	field := how[name]
	if field.value != nil {
		p.Default = field.value
	}
	if field.atomic {
		p.AddExtension("x-kubernetes-map-type", "atomic")
	}
	if len(field.keys) > 0 {
		p.AddExtension("x-kubernetes-list-map-keys", field.keys)
	}
	if field.list != "" {
		p.AddExtension("x-kubernetes-list-type", field.list)
	}
}

// property is the schema of a value of a type.
func (d *definition) property(t reflect.Type) spec.Schema {
	if t.Kind() == reflect.Pointer {
		return d.property(t.Elem())
	}
	if name, ok := nameOf(t); ok {
		d.maker.visit(t)
		if !d.seen[name] {
			d.seen[name] = true
			d.needs = append(d.needs, name)
		}
		return spec.Schema{SchemaProps: spec.SchemaProps{Ref: d.maker.ref(name)}}
	}
	switch t.Kind() {
	case reflect.Bool:
		return *spec.BooleanProperty()
	case reflect.Int32, reflect.Uint32, reflect.Int, reflect.Uint8, reflect.Int8, reflect.Int16, reflect.Uint16:
		return *spec.Int32Property()
	case reflect.Int64, reflect.Uint64:
		return *spec.Int64Property()
	case reflect.Float32, reflect.Float64:
		return *spec.Float64Property()
	case reflect.String:
		return *spec.StringProperty()
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return *spec.StrFmtProperty("byte")
		}
		item := d.property(t.Elem())
		blank(&item, t.Elem())
		return *spec.ArrayProperty(&item)
	case reflect.Map:
		item := d.property(t.Elem())
		blank(&item, t.Elem())
		return *spec.MapProperty(&item)
	}
	return spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}}}
}

// blank is what an item is when nothing is said of it.
func blank(item *spec.Schema, t reflect.Type) {
	switch t.Kind() {
	case reflect.Struct:
		item.Default = map[string]any{}
	case reflect.String:
		item.Default = ""
	}
}
