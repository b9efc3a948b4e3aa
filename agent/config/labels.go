package config

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Labels are the node's: those that every node has, which are the API's own, and behind them those of --node-labels,
// which may not change one of the former.
func (c *Config) Labels() (map[string]string, error) {
	own := map[string]string{
		corev1.LabelHostname: c.NodeName, corev1.LabelOSStable: runtime.GOOS, corev1.LabelArchStable: runtime.GOARCH,
	}
	labels := maps.Clone(own)
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(c.NodeLabels)) {
		value := c.NodeLabels[key]
		if is, ok := own[key]; ok && is != value {
			errs = append(errs, fmt.Errorf("--node-labels %s=%s: it is %s by itself", key, value, is))
		}
		wrong := slices.Concat(validation.IsQualifiedName(key), validation.IsValidLabelValue(value))
		if len(wrong) > 0 {
			errs = append(errs, fmt.Errorf("--node-labels %s=%s: %s", key, value, strings.Join(wrong, "; ")))
		}
		labels[key] = value
	}
	return labels, errors.Join(errs...)
}
