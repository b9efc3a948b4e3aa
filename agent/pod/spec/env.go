package spec

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// environment is the container's own, in the order it was given. A name that comes twice has its last value.
type environment struct {
	names  []string
	values map[string]string
	size   int // in bytes, of all that was set
}

func (e *environment) set(name, value string) {
	if _, ok := e.values[name]; !ok {
		e.names = append(e.names, name)
		e.size += len(name) + 2 // NAME=VALUE and what ends it
	}
	e.size += len(value) - len(e.values[name])
	e.values[name] = value
}

func (e *environment) lookup(name string) (string, bool) {
	v, ok := e.values[name]
	return v, ok
}

func (e *environment) message() []*runtimeapi.KeyValue {
	var out []*runtimeapi.KeyValue
	for _, n := range e.names {
		out = append(out, &runtimeapi.KeyValue{Key: n, Value: []byte(e.values[n])})
	}
	return out
}

// gatherer gathers the environment of one container.
type gatherer struct {
	in    *Input
	files map[[2]string]map[string]string // what env files say, by volume and path
}

// env gathers the container's environment. A value can refer to those before it, and to those of Services, which are
// there where the container does not set them itself.
func env(in *Input) (*environment, error) {
	if !in.Objects.ServicesListed() {
		return nil, errServicesUnknown
	}
	g := gatherer{in: in}
	e := &environment{values: make(map[string]string, len(in.Container.Env))}
	services := serviceVars(in.Pod, in.Objects)
	lookup := func(name string) (string, bool) {
		if v, ok := e.lookup(name); ok {
			return v, true
		}
		v, ok := services[name]
		return v, ok
	}
	for i := range in.Container.EnvFrom {
		if err := envFrom(in, &in.Container.EnvFrom[i], e); err != nil {
			return nil, err
		}
	}
	for i := range in.Container.Env {
		v := &in.Container.Env[i]
		if v.ValueFrom == nil {
			value, err := expand(v.Value, lookup)
			if err != nil {
				return nil, fmt.Errorf("environment variable %s: %w", v.Name, err)
			}
			if e.set(v.Name, value); e.size > maxStrings {
				return nil, errTooMuch
			}
			continue
		}
		value, ok, err := g.valueFrom(v)
		if err != nil {
			return nil, err
		}
		if ok {
			e.set(v.Name, value)
		}
	}
	e.under(services)
	return e, nil
}

// valueFrom is false for what is optional and not there. That something is missing is said in kubelet's words, which
// people look for.
func (g *gatherer) valueFrom(v *corev1.EnvVar) (value string, ok bool, err error) {
	in := g.in
	switch from := v.ValueFrom; {
	case from.FieldRef != nil:
		value, err = Field(in.Pod, from.FieldRef.FieldPath, in.Node, in.PodIPs)
	case from.ResourceFieldRef != nil:
		value, err = Resource(in.Pod, in.Container, from.ResourceFieldRef, in.Node.Allocatable)
	case from.ConfigMapKeyRef != nil:
		return configMapKey(in, from.ConfigMapKeyRef)
	case from.SecretKeyRef != nil:
		return secretKey(in, from.SecretKeyRef)
	case from.FileKeyRef != nil:
		value, ok, err = g.fileKeyRef(from.FileKeyRef)
		if err != nil {
			err = fmt.Errorf("environment variable %s: %w", v.Name, err)
		}
		return value, ok, err
	default:
		err = fmt.Errorf("its source is not known")
	}
	if err != nil {
		return "", false, fmt.Errorf("environment variable %s: %w", v.Name, err)
	}
	return value, true, nil
}

func configMapKey(in *Input, ref *corev1.ConfigMapKeySelector) (string, bool, error) {
	o, err := in.Objects.ConfigMap(in.Pod.Namespace, ref.Name)
	if err == nil {
		if v, ok := o.Data[ref.Key]; ok {
			return v, true, nil
		}
		err = fmt.Errorf("couldn't find key %s in ConfigMap %s/%s", ref.Key, in.Pod.Namespace, ref.Name)
	}
	return "", false, unlessOptional(ref.Optional, err)
}

func secretKey(in *Input, ref *corev1.SecretKeySelector) (string, bool, error) {
	o, err := in.Objects.Secret(in.Pod.Namespace, ref.Name)
	if err == nil {
		if v, ok := o.Data[ref.Key]; ok {
			return string(v), true, nil
		}
		err = fmt.Errorf("couldn't find key %s in Secret %s/%s", ref.Key, in.Pod.Namespace, ref.Name)
	}
	return "", false, unlessOptional(ref.Optional, err)
}

// unlessOptional drops the error that something is missing that may be.
func unlessOptional(optional *bool, err error) error {
	if isTrue(optional) {
		return nil
	}
	return err
}

// envFrom takes every key of an object.
func envFrom(in *Input, from *corev1.EnvFromSource, e *environment) error {
	values := map[string]string{}
	switch {
	case from.ConfigMapRef != nil:
		o, err := in.Objects.ConfigMap(in.Pod.Namespace, from.ConfigMapRef.Name)
		if err != nil {
			return unlessOptional(from.ConfigMapRef.Optional, err)
		}
		values = o.Data
	case from.SecretRef != nil:
		o, err := in.Objects.Secret(in.Pod.Namespace, from.SecretRef.Name)
		if err != nil {
			return unlessOptional(from.SecretRef.Optional, err)
		}
		for k, v := range o.Data {
			values[k] = string(v)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(values)) {
		e.set(from.Prefix+k, values[k])
	}
	return nil
}

// Field is the value of a field of the pod, as fieldRef names it.
func Field(pod *corev1.Pod, path string, node *Node, podIPs []string) (string, error) {
	if name, key, ok := subscript(path); ok {
		switch name {
		case "metadata.annotations":
			return pod.Annotations[key], nil
		case "metadata.labels":
			return pod.Labels[key], nil
		}
		return "", fmt.Errorf("field path %q has no keys", path)
	}
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return pairs(pod.Labels), nil
	case "metadata.annotations":
		return pairs(pod.Annotations), nil
	case "spec.nodeName":
		return node.Name, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP":
		return first(node.IPs), nil
	case "status.hostIPs":
		return strings.Join(node.IPs, ","), nil
	case "status.podIP":
		return first(podIPs), nil
	case "status.podIPs":
		return strings.Join(podIPs, ","), nil
	}
	return "", fmt.Errorf("field path %q is not known", path)
}

// subscript takes a path like metadata.labels['key'] apart.
func subscript(path string) (name, key string, ok bool) {
	name, rest, ok := strings.Cut(path, "['")
	if !ok || !strings.HasSuffix(rest, "']") {
		return "", "", false
	}
	return name, strings.TrimSuffix(rest, "']"), true
}

// pairs writes a map as a downward API volume has it.
func pairs(m map[string]string) string {
	var out []string
	for k, v := range m {
		out = append(out, k+"="+strconv.Quote(v))
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// Resource is the value of a container's request or limit, as resourceFieldRef names it, in units of its divisor and
// rounded up. A limit that is not set is what the node has to give.
func Resource(pod *corev1.Pod, c *corev1.Container, ref *corev1.ResourceFieldSelector, allocatable corev1.ResourceList) (string, error) {
	if ref.ContainerName != "" {
		if c = FindRegular(pod, ref.ContainerName); c == nil {
			return "", fmt.Errorf("container %q is not one of the pod", ref.ContainerName)
		}
	}
	kind, name, ok := strings.Cut(ref.Resource, ".")
	if !ok || kind != "limits" && kind != "requests" {
		return "", fmt.Errorf("resource %q is neither limits.NAME nor requests.NAME", ref.Resource)
	}
	res := corev1.ResourceName(name)
	q, ok := c.Resources.Requests[res]
	if kind == "limits" {
		if q, ok = c.Resources.Limits[res]; !ok || q.IsZero() {
			q = allocatable[res]
		}
	} else if limit, has := c.Resources.Limits[res]; !ok && has {
		q = limit
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	if res == corev1.ResourceCPU {
		return strconv.FormatInt(int64(math.Ceil(float64(q.MilliValue())/float64(divisor.MilliValue()))), 10), nil
	}
	return strconv.FormatInt(int64(math.Ceil(float64(q.Value())/float64(divisor.Value()))), 10), nil
}

// ExpandSubPath fills in a subPathExpr from the container's environment. What it refers to must be there.
func ExpandSubPath(expr string, in *Input) (string, error) {
	e, err := env(in)
	if err != nil {
		return "", err
	}
	var gone error
	path, err := expand(expr, func(name string) (string, bool) {
		v, ok := e.lookup(name)
		if !ok {
			gone = fmt.Errorf("subPathExpr %q: environment variable %s is not set", expr, name)
		}
		return v, ok
	})
	if err != nil {
		return "", fmt.Errorf("subPathExpr %q: %w", expr, err)
	}
	return path, gone
}
