// Package extender asks webhooks about nodes, as a KubeSchedulerConfiguration names them.
package extender

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

const (
	defaultTimeout = 5 * time.Second
	// maxAnswer bounds what is read of an answer: all nodes of a large cluster, as they are.
	maxAnswer = 256 << 20
	// pause is how many times as long as it may take one is left alone that does not answer.
	pause = 10
)

var errSilent = errors.New("it has not answered, and is asked again later")

// Extender is one webhook.
type Extender struct {
	config  configv1.Extender
	client  *http.Client
	managed sets.Set[string]
	// silent is until when it is not asked where it can be done without, in nanoseconds of the clock: each pod would
	// wait for it, and all others for the pod.
	silent atomic.Int64
}

var _ fwk.Extender = (*Extender)(nil)

// New makes one of a configuration.
func New(c configv1.Extender) (*Extender, error) {
	o := &rest.Config{}
	if t := c.TLSConfig; t != nil {
		o.TLSClientConfig = rest.TLSClientConfig{
			Insecure: t.Insecure, ServerName: t.ServerName, CertFile: t.CertFile, KeyFile: t.KeyFile, CAFile: t.CAFile,
			CertData: t.CertData, KeyData: t.KeyData, CAData: t.CAData,
		}
	}
	if c.EnableHTTPS && o.TLSClientConfig.CAFile == "" && len(o.TLSClientConfig.CAData) == 0 {
		o.TLSClientConfig.Insecure = true // as Kubernetes does where no authority is named
	}
	o.Timeout = defaultTimeout
	if c.HTTPTimeout.Duration > 0 {
		o.Timeout = c.HTTPTimeout.Duration
	}
	client, err := rest.HTTPClientFor(o)
	if err != nil {
		return nil, fmt.Errorf("make client of extender %q: %w", c.URLPrefix, err)
	}
	e := &Extender{config: c, client: client, managed: sets.New[string]()}
	for _, r := range c.ManagedResources {
		e.managed.Insert(r.Name)
	}
	return e, nil
}

// Name implements [fwk.Extender].
func (e *Extender) Name() string { return e.config.URLPrefix }

// IsBinder implements [fwk.Extender].
func (e *Extender) IsBinder() bool { return e.config.BindVerb != "" }

// IsPrioritizer implements [fwk.Extender].
func (e *Extender) IsPrioritizer() bool { return e.config.PrioritizeVerb != "" }

// IsFilter implements [fwk.Extender].
func (e *Extender) IsFilter() bool { return e.config.FilterVerb != "" }

// SupportsPreemption implements [fwk.Extender].
func (e *Extender) SupportsPreemption() bool { return e.config.PreemptVerb != "" }

// IsIgnorable implements [fwk.Extender].
func (e *Extender) IsIgnorable() bool { return e.config.Ignorable }

// IsInterested implements [fwk.Extender].
func (e *Extender) IsInterested(pod *corev1.Pod) bool {
	if e.managed.Len() == 0 {
		return true
	}
	for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		for _, list := range []corev1.ResourceList{c.Resources.Requests, c.Resources.Limits} {
			for name := range list {
				if e.managed.Has(string(name)) {
					return true
				}
			}
		}
	}
	return false
}

// Filter implements [fwk.Extender].
func (e *Extender) Filter(pod *corev1.Pod, nodes []fwk.NodeInfo) ([]fwk.NodeInfo, extenderv1.FailedNodesMap, extenderv1.FailedNodesMap, error) {
	byName := map[string]fwk.NodeInfo{}
	for _, n := range nodes {
		byName[n.Node().Name] = n
	}
	var answer extenderv1.ExtenderFilterResult
	if err := e.call(e.config.FilterVerb, e.args(pod, nodes), &answer); err != nil {
		return nil, nil, nil, err
	}
	if answer.Error != "" {
		return nil, nil, nil, fmt.Errorf("ask extender %q: %s", e.Name(), answer.Error)
	}
	var names []string
	switch {
	case e.config.NodeCacheCapable && answer.NodeNames != nil:
		names = *answer.NodeNames
	case answer.Nodes != nil:
		for i := range answer.Nodes.Items {
			names = append(names, answer.Nodes.Items[i].Name)
		}
	}
	left := make([]fwk.NodeInfo, 0, len(names))
	for _, name := range names {
		n := byName[name]
		if n == nil {
			return nil, nil, nil, fmt.Errorf("ask extender %q: it names node %q, which it was not asked about", e.Name(), name)
		}
		left = append(left, n)
	}
	return left, answer.FailedNodes, answer.FailedAndUnresolvableNodes, nil
}

// args are what an extender is asked with.
func (e *Extender) args(pod *corev1.Pod, nodes []fwk.NodeInfo) *extenderv1.ExtenderArgs {
	args := &extenderv1.ExtenderArgs{Pod: pod}
	if e.config.NodeCacheCapable {
		names := make([]string, 0, len(nodes))
		for _, n := range nodes {
			names = append(names, n.Node().Name)
		}
		args.NodeNames = &names
		return args
	}
	args.Nodes = &corev1.NodeList{}
	for _, n := range nodes {
		args.Nodes.Items = append(args.Nodes.Items, *n.Node())
	}
	return args
}

// Prioritize implements [fwk.Extender].
func (e *Extender) Prioritize(pod *corev1.Pod, nodes []fwk.NodeInfo) (*extenderv1.HostPriorityList, int64, error) {
	var answer extenderv1.HostPriorityList
	if err := e.call(e.config.PrioritizeVerb, e.args(pod, nodes), &answer); err != nil {
		return nil, 0, err
	}
	return &answer, e.config.Weight, nil
}

// Bind implements [fwk.Extender].
func (e *Extender) Bind(b *corev1.Binding) error {
	args := &extenderv1.ExtenderBindingArgs{PodName: b.Name, PodNamespace: b.Namespace, PodUID: b.UID, Node: b.Target.Name}
	var answer extenderv1.ExtenderBindingResult
	if err := e.call(e.config.BindVerb, args, &answer); err != nil {
		return err
	}
	if answer.Error != "" {
		return fmt.Errorf("bind by extender %q: %s", e.Name(), answer.Error)
	}
	return nil
}

// ProcessPreemption implements [fwk.Extender].
func (e *Extender) ProcessPreemption(pod *corev1.Pod, victims map[string]*extenderv1.Victims, nodes fwk.NodeInfoLister) (map[string]*extenderv1.Victims, error) {
	args := &extenderv1.ExtenderPreemptionArgs{Pod: pod, NodeNameToVictims: victims}
	if e.config.NodeCacheCapable {
		args.NodeNameToVictims, args.NodeNameToMetaVictims = nil, map[string]*extenderv1.MetaVictims{}
		for node, v := range victims {
			meta := &extenderv1.MetaVictims{NumPDBViolations: v.NumPDBViolations}
			for _, p := range v.Pods {
				meta.Pods = append(meta.Pods, &extenderv1.MetaPod{UID: string(p.UID)})
			}
			args.NodeNameToMetaVictims[node] = meta
		}
	}
	var answer extenderv1.ExtenderPreemptionResult
	if err := e.call(e.config.PreemptVerb, args, &answer); err != nil {
		return nil, err
	}
	result := map[string]*extenderv1.Victims{}
	for node, meta := range answer.NodeNameToMetaVictims {
		info, err := nodes.Get(node)
		if err != nil {
			return nil, fmt.Errorf("ask extender %q: %w", e.Name(), err)
		}
		if meta == nil {
			return nil, fmt.Errorf("ask extender %q: it says nothing of the victims on node %q", e.Name(), node)
		}
		v := &extenderv1.Victims{NumPDBViolations: meta.NumPDBViolations}
		for _, p := range meta.Pods {
			if p == nil {
				return nil, fmt.Errorf("ask extender %q: one of the victims on node %q is nobody", e.Name(), node)
			}
			i := slices.IndexFunc(info.GetPods(), func(q fwk.PodInfo) bool { return string(q.GetPod().UID) == p.UID })
			if i < 0 {
				return nil, fmt.Errorf("ask extender %q: it names pod %s, which is not on node %q", e.Name(), p.UID, node)
			}
			v.Pods = append(v.Pods, info.GetPods()[i].GetPod())
		}
		result[node] = v
	}
	return result, nil
}

func (e *Extender) call(verb string, args, answer any) error {
	spared := e.IsIgnorable() || verb == e.config.PrioritizeVerb
	if spared && time.Now().UnixNano() < e.silent.Load() {
		return fmt.Errorf("ask extender %q: %w", e.Name(), errSilent)
	}
	body, err := json.Marshal(args)
	if err != nil {
		return fmt.Errorf("ask extender %q: %w", e.Name(), err)
	}
	url := strings.TrimRight(e.config.URLPrefix, "/") + "/" + verb
	// The client has the time limit.
	r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("ask extender %q: %w", e.Name(), err)
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := e.client.Do(r)
	if err != nil {
		if late, ok := errors.AsType[net.Error](err); ok && late.Timeout() {
			e.silent.Store(time.Now().Add(pause * e.client.Timeout).UnixNano())
		}
		return fmt.Errorf("ask extender %q: %w", e.Name(), err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("ask extender %q: it answers %s", e.Name(), response.Status)
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(answer); err != nil {
		return fmt.Errorf("read answer of extender %q: %w", e.Name(), err)
	}
	return nil
}
