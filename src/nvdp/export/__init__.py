"""ONNX graphs of models."""

from nvdp.export.model import export_onnx

__all__ = ["export_onnx"]
