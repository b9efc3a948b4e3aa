package spec

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/podcert"
	"github.com/berth-node/berth/agent/volume/kind"
)

// Issued is what others have made for a pod, by the index of the source in its projected volume.
type Issued struct {
	Tokens       map[int]string // of its service account
	Certificates map[int]podcert.Credential
}

// Files is the content of a volume that is made of objects, or of the pod itself; false for a volume of any other kind.
// Of two files with one path the later one counts, as under kubelet.
func Files(pod *corev1.Pod, v *corev1.Volume, objects Objects, issued Issued, node *Node) ([]kind.File, bool, error) {
	f := files{pod: pod, objects: objects, issued: issued, node: node, at: map[string]kind.File{}}
	var err error
	switch {
	case v.ConfigMap != nil:
		s := v.ConfigMap
		f.mode, f.user = s.DefaultMode, s.DefaultUser
		err = f.configMap(s.Name, s.Items, s.Optional)
	case v.Secret != nil:
		s := v.Secret
		f.mode, f.user = s.DefaultMode, s.DefaultUser
		err = f.secret(s.SecretName, s.Items, s.Optional)
	case v.DownwardAPI != nil:
		f.mode, f.user = v.DownwardAPI.DefaultMode, v.DownwardAPI.DefaultUser
		err = f.downward(v.DownwardAPI.Items)
	case v.Projected != nil:
		f.mode, f.user = v.Projected.DefaultMode, v.Projected.DefaultUser
		err = f.projected(v.Projected.Sources)
	default:
		return nil, false, nil
	}
	if err != nil {
		return nil, true, err
	}
	var out []kind.File
	for _, path := range slices.Sorted(maps.Keys(f.at)) {
		out = append(out, f.at[path])
	}
	return out, true, nil
}

type files struct {
	pod     *corev1.Pod
	objects Objects
	issued  Issued
	node    *Node
	mode    *int32
	user    *int64
	at      map[string]kind.File
}

const defaultFileMode = 0o644

// add adds a file; without a mode or a user of its own it has the volume's.
func (f *files) add(path string, data []byte, mode *int32, user *int64) {
	if mode == nil {
		mode = f.mode
	}
	if user == nil {
		user = f.user
	}
	file := kind.File{Path: path, Data: data, Mode: defaultFileMode, User: user}
	if mode != nil {
		file.Mode = uint32(*mode)
	}
	f.at[path] = file
}

// pick adds all keys of an object, or those that items name.
func (f *files) pick(data map[string][]byte, items []corev1.KeyToPath, optional *bool, kind string) error {
	if len(items) == 0 {
		for k, v := range data {
			f.add(k, v, nil, nil)
		}
		return nil
	}
	for _, i := range items {
		v, ok := data[i.Key]
		if ok {
			f.add(i.Path, v, i.Mode, i.User)
		} else if !isTrue(optional) {
			return fmt.Errorf("references non-existent %s key: %s", kind, i.Key)
		}
	}
	return nil
}

func (f *files) configMap(name string, items []corev1.KeyToPath, optional *bool) error {
	o, err := f.objects.ConfigMap(f.pod.Namespace, name)
	if err != nil {
		return unlessOptional(optional, err)
	}
	data := maps.Clone(o.BinaryData)
	if data == nil {
		data = map[string][]byte{}
	}
	for k, v := range o.Data {
		data[k] = []byte(v)
	}
	return f.pick(data, items, optional, "config")
}

func (f *files) secret(name string, items []corev1.KeyToPath, optional *bool) error {
	o, err := f.objects.Secret(f.pod.Namespace, name)
	if err != nil {
		return unlessOptional(optional, err)
	}
	return f.pick(o.Data, items, optional, "secret")
}

func (f *files) downward(items []corev1.DownwardAPIVolumeFile) error {
	for _, i := range items {
		var value string
		var err error
		if i.FieldRef != nil {
			value, err = Field(f.pod, i.FieldRef.FieldPath, f.node, nil)
		} else if i.ResourceFieldRef != nil {
			value, err = Resource(f.pod, nil, i.ResourceFieldRef, f.node.Allocatable)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", i.Path, err)
		}
		f.add(i.Path, []byte(value), i.Mode, i.User)
	}
	return nil
}

func (f *files) projected(sources []corev1.VolumeProjection) error {
	for i, s := range sources {
		var err error
		switch {
		case s.ConfigMap != nil:
			err = f.configMap(s.ConfigMap.Name, s.ConfigMap.Items, s.ConfigMap.Optional)
		case s.Secret != nil:
			err = f.secret(s.Secret.Name, s.Secret.Items, s.Secret.Optional)
		case s.DownwardAPI != nil:
			err = f.downward(s.DownwardAPI.Items)
		case s.ServiceAccountToken != nil:
			err = f.token(s.ServiceAccountToken, i)
		case s.ClusterTrustBundle != nil:
			err = f.trustBundle(s.ClusterTrustBundle)
		case s.PodCertificate != nil:
			err = f.certificate(s.PodCertificate, i)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
