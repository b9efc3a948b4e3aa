// Command peer answers what Kubernetes' own defaulting and validation say of an object. It reads a request a line on
// its standard input and writes an answer a line: a module of its own, because Kubernetes' conversions share memory
// between its versioned and internal types, which only the API of its own version fits.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

type request struct {
	Group, Version, Kind string
	Part                 string `json:",omitempty"` // the subresource that is updated
	Object               json.RawMessage
	Old                  json.RawMessage `json:",omitempty"`
}

type problem struct{ Type, Field, Detail string }

type answer struct {
	Undecodable string          `json:",omitempty"`
	Panic       string          `json:",omitempty"`
	Seen        json.RawMessage `json:",omitempty"` // what of the object this version knows, before defaults
	Defaulted   json.RawMessage `json:",omitempty"`
	Problems    []problem
}

type updater interface {
	ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList
}

type strategy interface {
	rest.RESTCreateStrategy
	updater
}

func main() {
	klog.SetOutput(io.Discard)
	klog.LogToStderr(false)
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var r request
		if err := json.Unmarshal(line, &r); err != nil {
			fmt.Fprintln(os.Stderr, "read request:", err)
			os.Exit(1)
		}
		text, err := json.Marshal(answerTo(&r))
		if err != nil {
			fmt.Fprintln(os.Stderr, "write answer:", err)
			os.Exit(1)
		}
		_, _ = out.Write(append(text, '\n'))
		_ = out.Flush()
	}
}

func answerTo(r *request) (a answer) {
	defer func() {
		if p := recover(); p != nil {
			a.Panic = fmt.Sprint(p)
		}
	}()
	gvk := schema.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind}
	s, ok := strategies()[gvk]
	if !ok {
		a.Undecodable = "no strategy"
		return a
	}
	obj, err := decode(gvk, r.Object)
	if err != nil {
		a.Undecodable = err.Error()
		return a
	}
	if a.Seen, err = json.Marshal(obj); err != nil {
		a.Undecodable = err.Error()
		return a
	}
	legacyscheme.Scheme.Default(obj)
	in, err := internal(obj)
	if err != nil {
		a.Undecodable = err.Error()
		return a
	}
	// What is stored has gone through the internal type, which fills in some fields, too.
	if obj, err = legacyscheme.Scheme.ConvertToVersion(in, gvk.GroupVersion()); err != nil {
		a.Undecodable = err.Error()
		return a
	}
	obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	if a.Defaulted, err = json.Marshal(obj); err != nil {
		a.Undecodable = err.Error()
		return a
	}
	ctx := requestContext(gvk, in)
	var errs field.ErrorList
	if r.Old == nil {
		errs = s.Validate(ctx, in)
		if m, err := meta.Accessor(in); err == nil && len(errs) == 0 {
			errs = validation.ValidateObjectMetaAccessor(m, s.NamespaceScoped(), path.ValidatePathSegmentName, field.NewPath("metadata"))
		}
	} else {
		old, err := decode(gvk, r.Old)
		if err != nil {
			a.Undecodable = err.Error()
			return a
		}
		legacyscheme.Scheme.Default(old)
		oldIn, err := internal(old)
		if err != nil {
			a.Undecodable = err.Error()
			return a
		}
		var by updater = s
		if r.Part != "" {
			by = parts()[r.Part]
		}
		errs = by.ValidateUpdate(ctx, in, oldIn)
		if m, err := meta.Accessor(in); err == nil && len(errs) == 0 {
			errs = validation.ValidateObjectMetaAccessor(m, s.NamespaceScoped(), path.ValidatePathSegmentName, field.NewPath("metadata"))
		}
	}
	for _, e := range errs {
		a.Problems = append(a.Problems, problem{string(e.Type), e.Field, e.Detail})
	}
	return a
}

func decode(gvk schema.GroupVersionKind, text []byte) (runtime.Object, error) {
	obj, err := legacyscheme.Scheme.New(gvk)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(obj); err != nil {
		return nil, err
	}
	return obj, nil
}

func internal(obj runtime.Object) (runtime.Object, error) {
	kinds, _, err := legacyscheme.Scheme.ObjectKinds(obj)
	if err != nil {
		return nil, err
	}
	return legacyscheme.Scheme.ConvertToVersion(obj, schema.GroupVersion{Group: kinds[0].Group, Version: runtime.APIVersionInternal})
}

func requestContext(gvk schema.GroupVersionKind, obj runtime.Object) context.Context {
	ctx := genericapirequest.NewContext()
	if m, err := meta.Accessor(obj); err == nil {
		ctx = genericapirequest.WithNamespace(ctx, m.GetNamespace())
	}
	plural, _ := meta.UnsafeGuessKindToResource(gvk)
	ctx = genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{
		IsResourceRequest: true, APIGroup: gvk.Group, APIVersion: gvk.Version, Resource: plural.Resource,
	})
	return genericapirequest.WithUser(ctx, &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}})
}
