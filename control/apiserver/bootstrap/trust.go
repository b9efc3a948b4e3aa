package bootstrap

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// trustName is the ConfigMap of kube-system in which extension API servers read how the cluster authenticates.
const trustName = "extension-apiserver-authentication"

// ensureTrust publishes the authorities that clients and front proxies are verified with. What another server has
// published stays: while an authority is replaced, both are trusted.
func (o Options) ensureTrust(ctx context.Context, client kubernetes.Interface) error {
	if len(o.ClientCA) == 0 && len(o.RequestHeaderCA) == 0 {
		return nil
	}
	configMaps := client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	err := again(func() error {
		have, err := configMaps.Get(ctx, trustName, metav1.GetOptions{})
		missing := apierrors.IsNotFound(err)
		switch {
		case missing:
			have = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: trustName}}
		case err != nil:
			return err
		}
		merged, err := o.trust(have.Data)
		if err != nil {
			return err
		}
		if !missing && maps.Equal(merged, have.Data) {
			return nil
		}
		have.Data = merged
		if missing {
			_, err = configMaps.Create(ctx, have, metav1.CreateOptions{FieldManager: fieldManager})
		} else {
			_, err = configMaps.Update(ctx, have, metav1.UpdateOptions{FieldManager: fieldManager})
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("write ConfigMap %s/%s: %w", metav1.NamespaceSystem, trustName, err)
	}
	return nil
}

// trust is what the ConfigMap has to say, with what it says already.
func (o Options) trust(have map[string]string) (map[string]string, error) {
	all := maps.Clone(have)
	if all == nil {
		all = map[string]string{}
	}
	all["client-ca-file"] = bundle(have["client-ca-file"], o.ClientCA)
	if len(o.RequestHeaderCA) == 0 {
		return all, nil
	}
	all["requestheader-client-ca-file"] = bundle(have["requestheader-client-ca-file"], o.RequestHeaderCA)
	for name, values := range map[string][]string{
		"requestheader-username-headers":     {"X-Remote-User"},
		"requestheader-uid-headers":          {"X-Remote-Uid"},
		"requestheader-group-headers":        {"X-Remote-Group"},
		"requestheader-extra-headers-prefix": {"X-Remote-Extra-"},
		"requestheader-allowed-names":        o.RequestHeaderNames,
	} {
		var there []string
		// What cannot be read is nothing that an extension API server could have used.
		if json.Unmarshal([]byte(have[name]), &there) != nil {
			there = nil
		}
		for _, v := range values {
			if !slices.Contains(there, v) {
				there = append(there, v)
			}
		}
		if there == nil {
			there = []string{} // null is no list to those who read it
		}
		text, err := json.Marshal(there)
		if err != nil {
			return nil, err
		}
		all[name] = string(text)
	}
	return all, nil
}

// bundle adds certificates to those that are there, each once.
func bundle(have string, more []byte) string {
	var all bytes.Buffer
	var seen [][]byte
	for _, text := range [][]byte{[]byte(have), more} {
		for {
			block, rest := pem.Decode(text)
			if block == nil {
				break
			}
			text = rest
			if block.Type != "CERTIFICATE" || slices.ContainsFunc(seen, func(b []byte) bool { return bytes.Equal(b, block.Bytes) }) {
				continue
			}
			seen = append(seen, block.Bytes)
			all.Write(pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes}))
		}
	}
	return all.String()
}
