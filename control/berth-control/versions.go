package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-node/berth/control/apiserver/registry"
)

// versionFlags say which versions of the API are served beside those that always are.
type versionFlags struct{ config map[string]string }

func (f *versionFlags) add(p *pflag.FlagSet) {
	var all []string
	for _, gv := range registry.OnRequest() {
		all = append(all, gv.String()+"=true")
	}
	p.StringToStringVar(&f.config, "runtime-config", nil, "versions of the API that are served beside those that always are, as with Kubernetes: "+strings.Join(all, ", "))
}

// served are those versions.
func (f *versionFlags) served() (map[schema.GroupVersion]bool, error) {
	all := map[schema.GroupVersion]bool{}
	for name, text := range f.config {
		gv, err := schema.ParseGroupVersion(name)
		on, notBool := strconv.ParseBool(text)
		if err != nil || notBool != nil || !slices.Contains(registry.OnRequest(), gv) {
			return nil, fmt.Errorf("read --runtime-config %s=%s: it is VERSION=true or false, for a version of %v", name, text, registry.OnRequest())
		}
		all[gv] = on
	}
	return all, nil
}

// groups says whether there are groups of pods.
func (f *versionFlags) groups() bool {
	all, err := f.served()
	return err == nil && all[schedulingv1beta1.SchemeGroupVersion]
}
