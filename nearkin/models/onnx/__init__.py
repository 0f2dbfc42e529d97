"""Models beyond Python: written as ONNX files, and run by ONNX Runtime. Needs the extra `onnx`."""

from nearkin.models.onnx.description import Description
from nearkin.models.onnx.encoder import OnnxEncoder
from nearkin.models.onnx.file import Exported, export

__all__ = ["Description", "Exported", "OnnxEncoder", "export"]
