package registry

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func (t *targets) pod(ctx context.Context, name string) (*corev1.Pod, error) {
	o, err := t.pods.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return o.(*corev1.Pod), nil
}

// container is the URL of something of a container at its kubelet.
func (t *targets) container(ctx context.Context, verb, name, container string, query url.Values) (target, error) {
	p, err := t.pod(ctx, name)
	if err != nil {
		return target{}, err
	}
	if container, err = containerOf(p, container); err != nil {
		return target{}, err
	}
	u, err := t.atNode(ctx, p)
	if err != nil {
		return target{}, err
	}
	u.Path = fmt.Sprintf("/%s/%s/%s/%s", verb, p.Namespace, p.Name, container)
	u.RawQuery = query.Encode()
	return target{url: u, transport: t.dial.Kubelet(), upgrade: true}, nil
}

func (t *targets) atNode(ctx context.Context, p *corev1.Pod) (*url.URL, error) {
	if p.Spec.NodeName == "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", p.Name))
	}
	return t.kubelet(ctx, p.Spec.NodeName)
}

// containerOf is the container that is meant: the named one, or the only or default one.
func containerOf(p *corev1.Pod, name string) (string, error) {
	var all, inits []string
	for _, c := range p.Spec.Containers {
		all = append(all, c.Name)
	}
	for _, c := range p.Spec.InitContainers {
		inits = append(inits, c.Name)
	}
	known := slices.Concat(all, inits)
	for _, c := range p.Spec.EphemeralContainers {
		known = append(known, c.Name)
	}
	switch {
	case name == "" && len(all) == 1:
		return all[0], nil
	case name == "" && len(inits) > 0:
		return "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s, choose one of: [%s] or one of the init containers: [%s]",
			p.Name, strings.Join(all, " "), strings.Join(inits, " ")))
	case name == "":
		return "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s, choose one of: [%s]", p.Name, strings.Join(all, " ")))
	case !slices.Contains(known, name):
		return "", apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", name, p.Name))
	}
	return name, nil
}

// streams are the flags of exec and attach at a kubelet.
func streams(stdin, stdout, stderr, tty bool) url.Values {
	q := url.Values{}
	for name, on := range map[string]bool{"input": stdin, "output": stdout, "error": stderr, "tty": tty} {
		if on {
			q.Set(name, "1")
		}
	}
	return q
}

func (t *targets) exec(ctx context.Context, name string, o *corev1.PodExecOptions) (target, error) {
	q := streams(o.Stdin, o.Stdout, o.Stderr, o.TTY)
	for _, c := range o.Command {
		q.Add("command", c)
	}
	return t.container(ctx, "exec", name, o.Container, q)
}

func (t *targets) attach(ctx context.Context, name string, o *corev1.PodAttachOptions) (target, error) {
	return t.container(ctx, "attach", name, o.Container, streams(o.Stdin, o.Stdout, o.Stderr, o.TTY))
}

func (t *targets) portForward(ctx context.Context, name string, o *corev1.PodPortForwardOptions) (target, error) {
	p, err := t.pod(ctx, name)
	if err != nil {
		return target{}, err
	}
	u, err := t.atNode(ctx, p)
	if err != nil {
		return target{}, err
	}
	u.Path = fmt.Sprintf("/portForward/%s/%s", p.Namespace, p.Name)
	q := url.Values{}
	for _, port := range o.Ports {
		q.Add("port", strconv.Itoa(int(port)))
	}
	u.RawQuery = q.Encode()
	return target{url: u, transport: t.dial.Kubelet(), upgrade: true}, nil
}
