// Package config reads a KubeSchedulerConfiguration as Kubernetes has it, and gives it the defaults.
package config

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

// DefaultScheduler is the name of the scheduler of pods that name none.
const DefaultScheduler = "default-scheduler"

// Config is a configuration that is complete.
type Config struct {
	Parallelism               int
	PercentageOfNodes         int // 0: by how many there are
	FirstBackoff, LastBackoff time.Duration
	Profiles                  []Profile
	Extenders                 []configv1.Extender
}

// Profile is one scheduler's name with its plugins.
type Profile struct {
	Name              string
	PercentageOfNodes int
	Plugins           *configv1.Plugins
	Args              map[string]runtime.Object
}

// Default is the configuration that nobody has written.
func Default(plugins []configv1.Plugin) (*Config, error) {
	return complete(&configv1.KubeSchedulerConfiguration{}, plugins)
}

// Read reads a configuration, as YAML or JSON. Plugins are those that run by default. A field that there is not, and a
// value that is not allowed, is an error that names it.
func Read(data []byte, plugins []configv1.Plugin) (*Config, error) {
	scheme := runtime.NewScheme()
	if err := configv1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("read scheduler configuration: %w", err)
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	o, kind, err := decoder.Decode(data, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("read scheduler configuration: %w", err)
	}
	c, ok := o.(*configv1.KubeSchedulerConfiguration)
	if !ok {
		return nil, fmt.Errorf("read scheduler configuration: it is a %s, and has to be a KubeSchedulerConfiguration of %s", kind, configv1.SchemeGroupVersion)
	}
	if err := c.DecodeNestedObjects(decoder); err != nil {
		return nil, fmt.Errorf("read scheduler configuration: %w", err)
	}
	complete, err := complete(c, plugins)
	if err != nil {
		return nil, fmt.Errorf("read scheduler configuration: %w", err)
	}
	return complete, nil
}

func complete(c *configv1.KubeSchedulerConfiguration, plugins []configv1.Plugin) (*Config, error) {
	result := &Config{
		Parallelism: int(value(c.Parallelism, 16)), PercentageOfNodes: int(value(c.PercentageOfNodesToScore, 0)),
		FirstBackoff: time.Duration(value(c.PodInitialBackoffSeconds, 1)) * time.Second,
		LastBackoff:  time.Duration(value(c.PodMaxBackoffSeconds, 10)) * time.Second,
		Extenders:    c.Extenders,
	}
	errs := []error{
		check(result.Parallelism > 0, "parallelism", result.Parallelism, "it has to be more than 0"),
		checkPercentage("percentageOfNodesToScore", result.PercentageOfNodes),
		check(result.FirstBackoff > 0, "podInitialBackoffSeconds", result.FirstBackoff, "it has to be more than 0"),
		check(result.LastBackoff >= result.FirstBackoff, "podMaxBackoffSeconds", result.LastBackoff, "it must not be less than podInitialBackoffSeconds"),
	}
	profiles := c.Profiles
	if len(profiles) == 0 {
		profiles = []configv1.KubeSchedulerProfile{{}}
	}
	names := sets.New[string]()
	for i := range profiles {
		p, err := completeProfile(&profiles[i], len(profiles), result.PercentageOfNodes, plugins)
		field := fmt.Sprintf("profiles[%d]", i)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s.%w", field, err))
			continue
		}
		errs = append(errs, check(!names.Has(p.Name), field+".schedulerName", p.Name, "another profile has it"))
		names.Insert(p.Name)
		result.Profiles = append(result.Profiles, *p)
	}
	errs = append(errs, checkExtenders(c.Extenders)...)
	return result, errors.Join(errs...)
}

func completeProfile(in *configv1.KubeSchedulerProfile, profiles, percentage int, plugins []configv1.Plugin) (*Profile, error) {
	p := &Profile{Name: value(in.SchedulerName, ""), PercentageOfNodes: percentage, Args: map[string]runtime.Object{}}
	if in.SchedulerName == nil && profiles == 1 {
		p.Name = DefaultScheduler
	}
	if p.Name == "" {
		return nil, errors.New("schedulerName: it is empty")
	}
	if in.PercentageOfNodesToScore != nil {
		p.PercentageOfNodes = int(*in.PercentageOfNodesToScore)
	}
	if err := checkPercentage("percentageOfNodesToScore", p.PercentageOfNodes); err != nil {
		return nil, err
	}
	p.Plugins = &configv1.Plugins{}
	if in.Plugins != nil {
		p.Plugins = in.Plugins.DeepCopy()
	}
	p.Plugins.MultiPoint.Enabled = merge(plugins, p.Plugins.MultiPoint)
	for i, c := range in.PluginConfig {
		if _, twice := p.Args[c.Name]; twice {
			return nil, fmt.Errorf("pluginConfig[%d]: %q is there twice", i, c.Name)
		}
		p.Args[c.Name] = c.Args.Object
		if c.Args.Object == nil && len(c.Args.Raw) > 0 {
			// Arguments of plugins of others are known to them alone.
			p.Args[c.Name] = &runtime.Unknown{Raw: c.Args.Raw, ContentType: runtime.ContentTypeJSON}
		}
	}
	return p, nil
}

// merge are the plugins that run by default, as far as they are not disabled, with what is said of them, and then
// others.
func merge(plugins []configv1.Plugin, set configv1.PluginSet) []configv1.Plugin {
	disabled := sets.New[string]()
	for _, d := range set.Disabled {
		disabled.Insert(d.Name)
	}
	said := map[string]configv1.Plugin{}
	for _, e := range set.Enabled {
		said[e.Name] = e
	}
	var all []configv1.Plugin
	placed := sets.New[string]()
	if !disabled.Has("*") {
		for _, d := range plugins {
			if disabled.Has(d.Name) {
				continue
			}
			if e, ok := said[d.Name]; ok {
				d = e
				placed.Insert(d.Name)
			}
			all = append(all, d)
		}
	}
	for _, e := range set.Enabled {
		if placed.Has(e.Name) {
			placed.Delete(e.Name) // a second mention is an error, found where plugins are put in order
			continue
		}
		all = append(all, e)
	}
	return all
}

func checkExtenders(all []configv1.Extender) []error {
	var errs []error
	binders := 0
	resources := sets.New[string]()
	for i, e := range all {
		field := fmt.Sprintf("extenders[%d]", i)
		errs = append(errs, check(e.URLPrefix != "", field+".urlPrefix", e.URLPrefix, "it is empty"),
			check(e.PrioritizeVerb == "" || e.Weight > 0, field+".weight", e.Weight, "it has to be more than 0"))
		if e.BindVerb != "" {
			binders++
		}
		for j, r := range e.ManagedResources {
			at := fmt.Sprintf("%s.managedResources[%d].name", field, j)
			problems := validation.IsQualifiedName(r.Name)
			errs = append(errs, check(len(problems) == 0 && strings.Contains(r.Name, "/"), at, r.Name, "it is no name of an extended resource"),
				check(!resources.Has(r.Name), at, r.Name, "another extender has it"))
			resources.Insert(r.Name)
		}
	}
	return append(errs, check(binders <= 1, "extenders", binders, "only one of them may bind pods"))
}

func checkPercentage(field string, n int) error {
	return check(n >= 0 && n <= 100, field, n, "it has to be within 0 and 100")
}

func check(right bool, field string, value any, why string) error {
	if right {
		return nil
	}
	return fmt.Errorf("%s: %v: %s", field, value, why)
}

func value[T any](p *T, without T) T {
	if p == nil {
		return without
	}
	return *p
}
